"""Writes the pages of docs/ that are made from the code: `make docs`. Tests compare them with the code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trimtab.gateway.config import config_schema
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


def configuration_page() -> str:
    """Every key of gateway.yaml: default and meaning."""
    schema = config_schema()
    rows = "\n".join(
        f"| `{key}` | {default} | {meaning} |" for key, default, meaning in _keys(schema, schema)
    )
    return (
        f"{HEAD}# gateway.yaml, key by key\n\nA commented example: `trimtab serve --example`. Checked by "
        "`trimtab serve gateway.yaml --check`. `[]` stands for each entry of a list, `NAME` for a name of "
        f"your own.\n\n| key | default | meaning |\n|---|---|---|\n{rows}\n"
    )


def _keys(part: Mapping[str, Any], schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, ...]]:
    """Path, default and meaning of each key, those of inner tables after the key that holds them."""
    needed = part.get("required", ())
    for name, field in sorted(part["properties"].items(), key=lambda item: item[0] not in needed):
        text = field.get("description", "").replace("|", "\\|")
        yield path + name, "must be given" if name in needed else _default(field), text
        for prefix, inner in _tables(field, schema):
            yield from _keys(inner, schema, f"{path}{name}{prefix}.")


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    return "–" if isinstance(value, dict | list) or value in (None, "") else f"`{json.dumps(value)}`"


def _tables(field: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tables that a field may hold, each with what leads there: itself, entries, or named ones."""
    if "$ref" in field:
        field = schema["$defs"][field["$ref"].rsplit("/", 1)[-1]]
    if "properties" in field:
        yield "", field
    for branch in field.get("anyOf", field.get("oneOf", ())):
        yield from _tables(branch, schema)
    for key, prefix in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(field.get(key), dict):
            yield from ((prefix + further, inner) for further, inner in _tables(field[key], schema))


PAGES = {
    "policies.md": policies_page,
    "metrics.md": metrics_page,
    "gateway-configuration.md": configuration_page,
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
        print(f"wrote docs/{name}")
