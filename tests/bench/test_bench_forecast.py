"""The page says what was measured; which rows of a trace make a series."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.ages import without_age
from bench.forecast import PAGE, RESULTS, main
from bench.forecast_page import page
from bench.forecast_series import Source

from bench import forecast, forecast_series


def saved() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_page_is_made_from_what_is_saved() -> None:
    assert without_age(PAGE) == page(saved())


def test_page_sums_up_the_further_series() -> None:
    mase = [{method["method"]: method["mase"] for method in row["methods"]} for row in saved()["further"]]
    mixture = np.array([row.pop("mixture") for row in mase])
    ratios = mixture / [min(row.values()) for row in mase]
    lost = np.count_nonzero(mixture > [row["naive"] for row in mase])
    further = page(saved()).partition("## Accuracy on further series")[2].partition("\n## ")[0]
    assert f"Rows: {len(mase)}; mean ratio {ratios.mean():.3f}; worst {ratios.max():.3f} (" in further
    assert f"{np.count_nonzero(ratios > 1.05)} over 1.05; {lost} behind naive." in further
    far = [f"({ratio:.3f})" for ratio in sorted(ratios, reverse=True) if ratio > 1.05]
    assert [word.strip(",.") for word in further.rpartition("hindsight: ")[2].split() if "(" in word] == far


def test_a_series_of_some_rows_has_the_windows_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast_series, "DATA", tmp_path)
    of_a = {"only": ("who", "a")}
    hours = ["2017-10-09 07:30:00,b,1", "2017-10-09 08:40:00,a,2", "2017-10-09 08:50:00,a,4"]
    hours += ["2017-10-09 08:50:00,b,8", "2017-10-09 10:29:59,b,16", "2017-10-09 10:30:00,a,32"]
    (tmp_path / "dates.csv").write_text("\n".join(["at,who,size", *hours]), encoding="utf-8")
    counted = Source("", "dates.csv", "at", 3600, "1 h", (1,), **of_a).read()  # type: ignore[arg-type]
    np.testing.assert_array_equal(counted, [0, 2, 0])  # 07:30 to 10:30; the window begun then is left out
    summed = Source("", "dates.csv", "size", 1, "", (1,), by="at", **of_a).read()  # type: ignore[arg-type]
    np.testing.assert_array_equal(summed, [2, 4, 32])


def test_a_part_is_measured_anew_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = saved()
    results = tmp_path / "forecast.json"
    results.write_text(json.dumps(before), encoding="utf-8")
    monkeypatch.setattr(forecast, "RESULTS", results)
    monkeypatch.setattr(forecast, "PAGE", tmp_path / "forecast.md")
    monkeypatch.setitem(forecast.PARTS, "stations", lambda: before["stations"][:1])
    main(["stations"])
    after = json.loads(results.read_text(encoding="utf-8"))
    others = ("machine", "speed", "accuracy", "further")
    assert [after[part] for part in others] == [before[part] for part in others]
    assert after["stations"] == before["stations"][:1]
    assert (tmp_path / "forecast.md").read_text(encoding="utf-8") == page(after)
    with pytest.raises(SystemExit):
        main(["taxes"])
    assert "no such part: taxes" in capsys.readouterr().err
