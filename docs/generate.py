"""Writes the pages of docs/ that are made from the code: `make docs`. Tests compare them with the code."""

from __future__ import annotations

from pathlib import Path

from trimtab.metrics import METRICS
from trimtab.policies import Description, describe, names

FOLDER = Path(__file__).parent
HEAD = "<!-- Made by `make docs` from the code; edit the code instead. -->\n\n"


def policies_page() -> str:
    """The catalogue: one section per policy."""
    rows = [describe(name) for name in names()]
    table = "\n".join(f"| [`{d.name}`](#{d.name}) | {d.kind} | {d.idea} |" for d in rows)
    return (
        f"{HEAD}# Policies\n\n| name | brings | idea |\n|---|---|---|\n{table}\n\n"
        "`A+B` is policy A with the order of B; parameters are given as `power-of-d(d=3)+edf`.\n\n"
        + "\n".join(_section(d) for d in rows)
    )


def _section(policy: Description) -> str:
    parameters = ", ".join(f"`{p.name}={p.default}` ({p.kind})" for p in policy.parameters)
    text = f"## {policy.name}\n\n{_markdown(policy.documentation)}\n"
    return text + (f"\n**Parameters** {parameters}\n" if parameters else "")


def _markdown(documentation: str) -> str:
    """A docstring's headings, words at the margin over indented text, as bold paragraphs."""
    lines = documentation.splitlines()
    marked = [
        f"\n**{line}**\n"
        if line and not line[0].isspace() and i + 1 < len(lines) and lines[i + 1][:4] == "    "
        else line
        for i, line in enumerate(lines)
    ]
    return "\n".join(line.strip() if line.startswith("    ") else line for line in marked)


def metrics_page() -> str:
    """Every metric: unit, direction, definition."""
    rows = "\n".join(
        f"| `{m.name}` | {m.unit} | {m.better or '–'} | {m.definition} |" for m in METRICS.values()
    )
    head = "| name | unit | better | definition |\n|---|---|---|---|"
    return f"{HEAD}# Metrics\n\nFormulas are in GLOSSARY.md.\n\n{head}\n{rows}\n"


PAGES = {"policies.md": policies_page, "metrics.md": metrics_page}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
        print(f"wrote docs/{name}")
