"""The page of published figures beside those computed here."""

from __future__ import annotations

from typing import Any

from bench.golden.cases import Golden

HEAD = """<!-- Made by `python -m bench.golden` from what it measured; `--docs` writes it anew. -->

# Published figures, reproduced

Allocators of training jobs against the figures that their authors published. `make golden` computes all of them anew;
continuous integration computes the quick ones. Data and profiles are the authors' own. Where a published program differs
from its paper, the figure is computed with the program's behaviour, each quirk behind a named option, and the variant true
to the paper stands beside it. Where the authors' program itself was run on the published data, the figure is held to what it gave
("as the program"), and a note says where the paper has another. No constant is fitted to a trace: figures that miss stay as they are, and the tests name them. CPU seconds are those of one run on one core, reading and compilation included where they
fell into it; they compare nothing.
"""


def page(goldens: list[Golden], saved: dict[str, Any]) -> str:
    parts = [HEAD]
    for study in dict.fromkeys(golden.study for golden in goldens):
        rows = [_row(g, saved.get(f"{g.study}: {g.name}")) for g in goldens if g.study == study]
        head = "| case | published | here | demanded | holds | CPU s |\n| --- | --- | --- | --- | --- | --- |"
        parts.append(f"\n## {study}\n\n{head}\n" + "\n".join(rows) + "\n")
        notes = [f"- *{g.name}*: {g.note}." for g in goldens if g.study == study and g.note]
        parts += ["\n" + "\n".join(notes) + "\n"] if notes else []
    return "".join(parts)


def _row(golden: Golden, found: dict[str, Any] | None) -> str:
    published = "" if golden.kind == "beside" else f"{golden.published:g}"
    if found is None:
        return f"| {golden.name} | {published} | not computed | {golden.kind} |  |  |"
    holds = "" if golden.kind == "beside" else "yes" if golden.holds(found["figure"]) else "**no**"
    return f"| {golden.name} | {published} | {found['figure']:.6g} | {golden.kind} | {holds} | {found['cpu_s']:g} |"
