"""Tables of one's own: how values are written, which rows are read, and what becomes of bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

from support.trace_files import written
from trimtab.errors import TraceError
from trimtab.traces import TraceMapping, read_trace
from trimtab.traces.guess import guess_columns, proposed
from trimtab.traces.read import import_files
from trimtab.traces.slicing import TraceOptions
from trimtab.traces.source import look_at

COLUMNS = {"arrival_s": "when", "output_tokens": "out_tok", "tenant": "who"}
ODD = """\
when;who;out_tok;status
25/10/2026 01:00:00;Müller;100;200
25/10/2026 04:00:00;N/A;N/A;200
25/10/2026 03:30:00;Ø;kaputt;200
25/10/2026 04:00:01;;300;500
25/10/2026 04:00:02;x;50;200
"""
RULES = {
    "time_format": "%d/%m/%Y %H:%M:%S",
    "time_zone": "Europe/Berlin",
    "encoding": "latin-1",
    "sort": True,
}


class Arrow:
    """A table that is known only by the Arrow interface."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame = frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.frame.__arrow_c_stream__(requested_schema)


def odd(folder: Path) -> Path:
    path = folder / "odd.csv"
    path.write_bytes(ODD.encode("latin-1"))
    return path


def test_bad_rows_are_dropped_and_counted_with_their_first_lines(tmp_path: Path) -> None:
    trace = read_trace(odd(tmp_path), columns=COLUMNS, on_bad_row="drop", where="status == 200", **RULES)
    # Clocks go back at 03:00 in Berlin: from 01:00 to 04:00:02 there are four hours and two seconds.
    assert trace.table["arrival_s"].to_list() == [0.0, 4 * 3600 + 2.0]
    assert trace.table["tenant"].to_list() == ["Müller", "x"]
    assert trace.dropped == {"not status == 200": 1}
    found = {(r.action, r.reason): (r.rows, r.places, r.example) for r in trace.repairs}
    assert found == {
        ("dropped", "unreadable out_tok"): (1, ("line 4",), "kaputt"),
        ("dropped", "missing value of out_tok"): (1, ("line 3",), None),
    }


def test_bad_values_are_filled_with_the_median_or_the_value_given(tmp_path: Path) -> None:
    trace = read_trace(odd(tmp_path), columns=COLUMNS, on_bad_row="fill", **RULES)
    assert trace.table["output_tokens"].to_list() == [100, 100, 100, 300, 50]  # median of 100, 300, 50
    assert trace.table["tenant"].to_list() == ["Müller", "Ø", None, None, "x"]
    assert [(r.action, r.rows) for r in trace.repairs] == [("filled", 2)]
    given = read_trace(odd(tmp_path), columns=COLUMNS, on_bad_row="fill", fill={"output_tokens": 7}, **RULES)
    assert given.table["output_tokens"].to_list() == [100, 7, 7, 300, 50]
    assert given.table["size"].to_list() == [100.0, 7.0, 7.0, 300.0, 50.0]


def test_objects_are_no_labels_and_their_values_are_guessed_by_their_keys(tmp_path: Path) -> None:
    rows = [
        {"ts": at, "route": {"name": "chat", "node": node}, "timing": {"queue_ms": 1, "total_ms": 800}}
        for at, node in ((1763028000, "gpu-01"), (1763028001, "gpu-02"), (1763028002, "gpu-01"))
    ]
    source = look_at(written(tmp_path, "log.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows)))
    mapping = proposed(guess_columns(source, TraceMapping()), TraceMapping())
    assert mapping["columns"] == {
        "arrival_s": "ts",
        "class": "route.name",
        "node": "route.node",
        "recorded_s": {"column": "timing.total_ms", "scale": 1e-3},
    }


def test_lines_that_do_not_parse_are_dropped_and_later_lines_keep_their_numbers(tmp_path: Path) -> None:
    wide = written(tmp_path, "wide.csv", "arrival_s,size\n0,1\n1,2,é\n2,x\n3,4\n")
    with pytest.raises(TraceError, match=r"line 3: too many fields \(got '1,2,é'\)"):
        read_trace(wide)
    trace = read_trace(wide, on_bad_row="drop")
    assert trace.table["arrival_s"].to_list() == [0.0, 3.0]
    assert [repair.places for repair in trace.repairs] == [("line 3",), ("line 4",)]
    json_lines = written(tmp_path, "bad.jsonl", '{"arrival_s":0,"size":1}\nnone\n{"arrival_s":2,"size":0}\n')
    trace = read_trace(json_lines, on_bad_row="drop")
    assert trace.table["arrival_s"].to_list() == [0.0]
    assert [repair.places for repair in trace.repairs] == [("line 2",), ("line 3",)]


def test_quoted_line_ends_shift_lines_and_a_stray_quote_costs_one_row(tmp_path: Path) -> None:
    head = 'arrival_s,prompt,size\n0,"a\nb, c",1\n1,x,0\n'
    with pytest.raises(TraceError, match=r"line 4, column size: value out of range"):
        read_trace(written(tmp_path, "a.csv", head))
    path = written(tmp_path, "b.csv", f'{head}2,5" pipe,1\n3,"d\n\ne",2\n4,x,bad\n')
    with pytest.raises(TraceError, match=r'line 5: a quote \("\) inside a field'):
        read_trace(path)
    trace = read_trace(path, on_bad_row="drop")
    assert trace.table["arrival_s"].to_list() == [0.0, 3.0]
    assert sorted(repair.places for repair in trace.repairs) == [("line 4",), ("line 5",), ("line 9",)]


def test_values_within_json_objects_are_columns(tmp_path: Path) -> None:
    usage = ({"prompt_tokens": k, "completion_tokens": k + 1, "d": [1]} for k in range(3))
    rows = [json.dumps({"id": k, "ts": k, "usage": used}) for k, used in enumerate(usage)]
    path = written(tmp_path, "n.jsonl", "\n".join(rows))
    mapping = TraceMapping.model_validate(
        proposed(guess_columns(look_at(path), TraceMapping()), TraceMapping())
    )
    trace = read_trace(path, mapping={**dict(mapping), "where": "`usage.prompt_tokens` > 0"})
    assert trace.table["output_tokens"].to_list() == [2, 3]
    assert trace.table["original_id"].to_list() == ["1", "2"]
    whole = written(tmp_path, "w.json", '[\n {"ts": 0, "size": 1}\n]\n')
    with pytest.raises(TraceError, match=r"jq -c '\.\[\]' w\.json"):
        look_at(whole)


@pytest.mark.parametrize(
    ("head", "columns", "found"),
    [
        ("arrival_s,size,trace_id,requestId", {}, "d"),
        ("arrival_s,size,trace_id,id", {}, "d"),
        ("when,size,GUID,x", {"arrival_s": "when", "size": "size"}, "c"),
        ("arrival_s,size,x,id", {"session": "id"}, None),
        ("arrival_s,size,x,id", {"original_id": "x"}, "c"),
    ],
)
def test_ids_of_requests_come_along_by_their_usual_names(
    tmp_path: Path, head: str, columns: dict[str, str], found: str | None
) -> None:
    table = read_trace(written(tmp_path, "i.csv", f"{head}\n0,1,c,d\n"), columns=columns).table
    assert (table["original_id"].to_list() if "original_id" in table.columns else [None]) == [found]


def test_lists_and_bytes_of_a_frame_come_along_as_text() -> None:
    frame = pl.DataFrame({"arrival_s": [0.0], "size": [1.0], "tags": [["a", "b"]], "trace_id": [b"\xff\x00"]})
    table = read_trace(frame, keep=["tags"]).table
    assert table["original_id"].to_list() == ["ff00"]
    assert table["tags"].to_list() == ["['a', 'b']"]


def test_blank_and_not_available_mean_the_same_in_every_kind_of_file(tmp_path: Path) -> None:
    csv = written(tmp_path, "a.csv", 'arrival_s,size,tenant,deadline_s\n0,1,N/A,N/A\n1,1," ",""\n2,1,-,3\n')
    rows = '{"arrival_s":0,"size":1,"tenant":"N/A","deadline_s":""}\n{"arrival_s":1,"size":1,"tenant":""}\n'
    json_lines = written(tmp_path, "a.jsonl", rows + '{"arrival_s":2,"size":1,"tenant":"-","deadline_s":3}\n')
    for path in (csv, json_lines):
        table = read_trace(path).table
        assert table["tenant"].to_list() == [None, None, "-"]
        assert table["deadline_s"].to_list() == [None, None, 3.0]
        assert read_trace(path, na=["-"]).table["tenant"].to_list() == [None, None, None]


def test_end_times_decimal_commas_and_kept_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "e.csv", "end|took|tok|note|size\n10,5|2,5|3|a|big\n11|3|4|b|small\n")
    columns = {"arrival_s": "end", "recorded_s": "took", "output_tokens": "tok"}
    trace = read_trace(path, columns=columns, time_is="end", decimal=",", sort=True, keep=["note", "size"])
    assert trace.table["arrival_s"].to_list() == [0.0, 0.0]
    assert trace.table["note"].to_list() == ["a", "b"]
    assert trace.table["size_in_file"].to_list() == ["big", "small"]
    assert trace.unused_columns == ()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("status == 200", [0, 3]),
        ("status != 200", [1]),
        ("not status == 200", [1, 2]),
        ("status is None", [2]),
        ("status >= 200 and `a b` in ('x', 'y')", [0, 1]),
        ("`a b` == 'z' or status > 400", [1, 3]),
        ("`a b` not in ['x', 'y']", [3]),
    ],
)
def test_conditions_on_rows(tmp_path: Path, text: str, kept: list[int]) -> None:
    path = written(tmp_path, "w.csv", "arrival_s,status,a b\n0,200,x\n1,500,y\n2,,\n3,200,z\n")
    assert read_trace(path, where=text).table["arrival_s"].to_list() == kept


@pytest.mark.parametrize(
    "text",
    ["stat == 200", "status", "status = 200", "len(status) == 3", "1 < status < 2", "status == (1, 2)"],
)
def test_conditions_that_are_none(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, "w.csv", "arrival_s,status\n0,200\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path, where=text)
    assert caught.value.field == "where"
    assert caught.value.value == text


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ({"time_zone": "Mars/Base"}, "mapping.time_zone"),
        ({"fill": {"tenant": 1}}, "mapping.fill"),
        ({"on_bad_row": "ignore"}, "mapping.on_bad_row"),
        ({"delimiter": "||"}, "mapping.delimiter"),
        ({"columns": {"arrival_s": "t", "out": "x"}}, "mapping.columns"),
        ({"wher": "x"}, "mapping.wher"),
        ({"encoding": "latin-99"}, "encoding"),
    ],
)
def test_rules_that_are_none(tmp_path: Path, rules: dict[str, Any], field: str) -> None:
    path = written(tmp_path, "w.csv", "arrival_s,t\n0,200\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path, **rules)
    assert caught.value.field == field


def test_names_of_columns_in_another_encoding_ask_for_it(tmp_path: Path) -> None:
    path = tmp_path / "names.csv"
    path.write_bytes("wann;Größe\n0;1\n".encode("latin-1"))
    with pytest.raises(TraceError, match=r"names of columns are no UTF-8 text.*--encoding latin-1") as caught:
        read_trace(path)
    assert caught.value.value == ["wann", "Gr\ufffd\ufffde"]
    with pytest.raises(TraceError, match="not recognised from the columns") as caught:
        read_trace(path, encoding="latin-1")
    assert caught.value.value == ["wann", "Größe"]
    assert read_trace(path, columns={"arrival_s": "wann"}).table["arrival_s"].to_list() == [0.0]


def test_data_frames_are_read_like_files(tmp_path: Path) -> None:
    rows = {"when": ["2026-01-01T00:00:00Z", "2026-01-01T00:00:02Z"], "out_tok": [5, 7], "who": ["a", None]}
    frame = pl.DataFrame(rows)
    path = tmp_path / "f.parquet"
    frame.write_parquet(path)
    from_file = read_trace(path, columns=COLUMNS, time_unit="datetime").table
    zoned = pd.DataFrame(rows).assign(when=lambda f: pd.to_datetime(f["when"]))
    for given in (frame, frame.lazy(), pd.DataFrame(rows), zoned, Arrow(frame)):
        table = read_trace(given, columns=COLUMNS, time_unit="datetime").table
        assert table.equals(from_file)
    with pytest.raises(TraceError, match="is a int"):
        read_trace(7)


def test_a_guess_names_columns_times_and_units_and_its_mapping_reads_the_file(tmp_path: Path) -> None:
    text = "Start Time,userId,completionTokens,latency_ms,comment\n"
    text += "".join(f"13.11.2026 10:00:0{i},u{i % 2},{i + 1},{100 * i},c\n" for i in range(8))
    path = written(tmp_path, "g.csv", text)
    guesses = guess_columns(look_at(path), TraceMapping())
    assert [(g.name, g.canonical) for g in guesses] == [
        ("Start Time", "arrival_s"),
        ("userId", "tenant"),
        ("completionTokens", "output_tokens"),
        ("latency_ms", "recorded_s"),
        ("comment", None),
    ]
    mapping = TraceMapping.model_validate(proposed(guesses, TraceMapping()))
    assert mapping.time_format == "%d.%m.%Y %H:%M:%S"
    table = read_trace(path, mapping=mapping).table
    assert table["arrival_s"].to_list() == [float(i) for i in range(8)]
    assert table["recorded_s"].to_list() == pytest.approx([0.1 * i for i in range(8)])


def test_day_and_month_that_could_be_swapped_are_told(tmp_path: Path) -> None:
    path = written(tmp_path, "g.csv", "time,n\n03/04/2026 10:00:00,1\n05/04/2026 10:00:00,2\n")
    kind = guess_columns(look_at(path), TraceMapping())[0].kind
    assert "%d/%m/%Y" in kind
    assert "%m/%d/%Y" in kind
    sure = written(tmp_path, "s.csv", "time,n\n23/04/2026 10:00:00,1\n")
    assert guess_columns(look_at(sure), TraceMapping())[0].kind == "date and time, %d/%m/%Y %H:%M:%S"


def test_several_files_become_one_trace_from_the_first_arrival_on(tmp_path: Path) -> None:
    late = written(tmp_path, "b.csv", "t,size\n2026-01-01 00:00:10,1\n2026-01-01 00:00:12,2\n")
    early = written(tmp_path, "a.csv", "t,size\n2026-01-01 00:00:05,3\n2026-01-01 00:00:11,4\n")
    mapping = TraceMapping.model_validate(
        {"columns": {"arrival_s": "t", "size": "size"}, "time_unit": "datetime"}
    )
    trace = import_files([late, early], "auto", mapping, TraceOptions())
    assert trace.table["arrival_s"].to_list() == [0.0, 5.0, 6.0, 7.0]
    assert trace.table["size"].to_list() == [3.0, 1.0, 4.0, 2.0]
    assert trace.rows_in_file == 4


def test_names_in_other_languages_are_taken_for_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    heads = ("Zeit", "Modèle", "Prompt-Länge", "Antwort-Tokens", "Latenz (ms)", "Zeitzone")
    rows = "".join(f"0{k}/03/2026 00:00:00;gros;{100 + k};{10 + k};{900 + k};x{k}\n" for k in range(1, 9))
    path.write_text(f"{';'.join(heads)}\n{rows}", "utf-8")
    guesses = guess_columns(look_at(path), TraceMapping())
    found = {guess.name: guess.canonical for guess in guesses}
    canonical = ("arrival_s", "model", "prompt_tokens", "output_tokens", "recorded_s", None)
    assert found == dict(zip(heads, canonical, strict=True))
    french = written(
        tmp_path, "f.csv", "Quand;Jetons d'entrée;Jetons de sortie;Durée (s)\n1/1/2026 1:00:00;1;2;3\n"
    )
    taken = [guess.canonical for guess in guess_columns(look_at(french), TraceMapping())]
    assert taken == ["arrival_s", "prompt_tokens", "output_tokens", "recorded_s"]
