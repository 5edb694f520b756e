"""Writes the pages of docs/ that are made from the code: `make docs`. Tests compare them with the code."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
import typer.main

import trimtab
from trimtab import errors, forecast, jobs, metrics, policies, solvers, traces
from trimtab.chains.run_metrics import STAGE_FAMILIES
from trimtab.cli.app import app
from trimtab.clusters.kube.objects import KUBERNETES
from trimtab.clusters.slurm.slurm_nodes import SLURM
from trimtab.domain import cluster, planning, requests, view
from trimtab.domain.allocator import JobNeed
from trimtab.domain.needs import Host, Need, names_of
from trimtab.engine.provided import LIVE_RUN, SIMULATOR
from trimtab.experiments import compare as comparing
from trimtab.experiments.autoscaling.autoscaling_kind import AUTOSCALING_METRICS
from trimtab.experiments.autoscaling.autoscaling_scenario import AutoscalingScenario
from trimtab.experiments.colocation.shared_kind import SHARED_METRICS
from trimtab.experiments.colocation.shared_scenario import SharedScenario
from trimtab.experiments.scenario import scenario_schema
from trimtab.experiments.training.training_scenario import TrainingScenario
from trimtab.forecast import queueing
from trimtab.gateway.config import config_schema
from trimtab.gateway.config.policies import GATEWAY
from trimtab.gateway.observe.metric_store import BALANCE_FAMILIES
from trimtab.metrics import METRICS
from trimtab.policies import Description, describe, names, policy_class
from trimtab.traces import TraceMapping
from trimtab.traces.formats import COLUMNS
from trimtab.traces.public_traces import CATALOGUE
from trimtab.training.allocator_catalogue import allocator_class, allocator_names, describe_allocator
from trimtab.training.job_metrics import JOB_METRICS

FOLDER = Path(__file__).parent
HEAD = "<!-- Made by `make docs` from the code; edit the code instead. -->\n\n"
NAMES_OF_POLICIES = names()
NAMES_OF_ALLOCATORS = allocator_names()


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = list(head)
    lines = [head, ["---"] * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def policies_page() -> str:
    """The catalogue: one row per policy."""
    rows = ((f"[`{d.name}`]({d.name}.md)", d.kind, d.idea) for d in map(describe, NAMES_OF_POLICIES))
    return (
        f"{HEAD}# Policies\n\nEach policy is one file of `src/trimtab/policies/` and names its source. A "
        "*dispatch* policy chooses the node; an *order* chooses the next request of a queue. `A+B` is policy A "
        "with the order of B. Parameters follow in parentheses: `power-of-d(d=3)+edf`. How the policies "
        "compare is in [Benchmarks](../benchmarks/policies.md), how to choose one in "
        "[Choose a policy](../guides/choose-a-policy.md).\n\n" + table(("name", "kind", "idea"), rows) + "\n"
        "The allocators of training jobs are [a catalogue of their own](../allocators/index.md).\n\n"
        "## What policies need\n\n[What hosts provide](../concepts/needs.md) explains each need. A host that lacks a "
        "need of the second column refuses the policy. Without a need of the third column the policy runs, and a "
        "note says what it does instead, as its page does.\n\n" + _needs_table()
    )


def _needs_table() -> str:
    """Policies × needs; a composite needs what its candidates need."""
    rows = []
    for name in NAMES_OF_POLICIES:
        policy = policy_class(name)()
        refused = {need for need in policy.all_needs if policy.without(need) is None}
        if policy.all_needs:
            link = f"[`{name}`]({name}.md)"
            rows.append((link, names_of(refused) or "–", names_of(policy.all_needs - refused) or "–"))
    return table(("policy", "cannot do without", "can do without"), rows)


def needs_page() -> str:
    """Hosts × needs."""
    rows = [
        (
            need,
            need.meaning,
            *(_provides(host, need) for host in (SIMULATOR, LIVE_RUN, GATEWAY, KUBERNETES, SLURM)),
        )
        for need in Need
    ]
    heads = ("need", "meaning", *(host.name for host in (SIMULATOR, LIVE_RUN, GATEWAY, KUBERNETES, SLURM)))
    return (
        f"{HEAD}# What hosts provide\n\nA policy declares what it reads beyond the nodes' queues and estimates, and what "
        "its host must do for it: its *needs*. A host provides some needs always and others where they are "
        "configured. Where a need is not met, the host refuses the policy and says what is missing (exit code 2), "
        "unless the policy can do without it: then it runs, and a note in the comparison, or in the gateway's log "
        "and status, says what it does instead. Which policy needs what is on "
        "[Policies](../policies/index.md#what-policies-need).\n\n" + table(heads, rows)
    )


def _provides(host: Host, need: Need) -> str:
    """Always, under which key, or never."""
    return "–" if need not in host.provides else host.provides[need] or "always"


def policy_page(name: str) -> str:
    """One policy: its documentation and its parameters."""
    policy = describe(name)
    rows = [(f"`{p.name}`", f"`{p.default}`", p.kind) for p in policy.parameters]
    parameters = f"\n## Parameters\n\n{table(('name', 'default', 'type'), rows)}" if rows else ""
    return f"{HEAD}# {policy.name}\n\n{_documentation(policy)}\n{_needs_of(name)}{parameters}"


def allocators_page() -> str:
    """The catalogue of allocators: one row each."""
    rows = ((f"[`{d.name}`]({d.name}.md)", d.idea) for d in map(describe_allocator, NAMES_OF_ALLOCATORS))
    return (
        f"{HEAD}# Allocators of training jobs\n\nEach allocator is one file of `src/trimtab/training/allocators/` "
        "and names its source; [Training jobs](../guides/training.md) shows how to compare them and to ask one for a "
        "decision. `trimtab policies --kind training` prints this list. Parameters follow in parentheses: "
        "`tiresias(thresholds=3600)`. [Published figures](../benchmarks/golden.md) has the figures of the authors that "
        f"they reproduce.\n\n{table(('name', 'idea'), rows)}\n## What allocators need\n\nA run whose profiles lack a "
        f"need refuses the allocator.\n\n{table(('need', 'meaning'), [(n, n.meaning) for n in JobNeed])}"
    )


def allocator_page(name: str) -> str:
    """One allocator: its documentation, needs and parameters."""
    found, cls = describe_allocator(name), allocator_class(name)
    rows = [(f"`{p.name}`", f"`{p.default}`", p.kind) for p in found.parameters]
    parameters = f"\n## Parameters\n\n{table(('name', 'default', 'type'), rows)}" if rows else ""
    needs = ", ".join(sorted(cls.needs)) or "nothing beyond ages and requests"
    how = f"\n## How it runs\n\nNeeds: {needs}. Clock: `{cls.clock}`. Placement: " + (
        "its own.\n" if cls.places else f"`{cls.placement}`.\n"
    )
    return f"{HEAD}# {found.name}\n\n{_documentation(found)}\n{how}{parameters}"


def _needs_of(name: str) -> str:
    """Each need of a policy, and what it does without it."""
    policy = policy_class(name)()
    rows = [(need, policy.without(need) or "refused") for need in Need if need in policy.all_needs]
    return f"\n## Needs\n\n{table(('need', 'without it'), rows)}" if rows else ""


def _documentation(policy: Description) -> str:
    """A docstring's headings, words at the margin over indented text, as headings."""
    lines = policy.documentation.splitlines()
    marked = [
        f"\n## {line}\n"
        if line and not line[0].isspace() and i + 1 < len(lines) and lines[i + 1][:4] == "    "
        else line.removeprefix("    ")
        for i, line in enumerate(lines)
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(marked)).strip()


def metrics_page() -> str:
    """Every metric: unit, direction, definition."""
    rows = ((f"`{m.name}`", m.unit, m.better or "–", m.definition, m.formula) for m in METRICS.values())
    return (
        f"{HEAD}# Metrics\n\n`trimtab metrics` prints this list. A name ends with its unit. The quantities in "
        f"the formulas are in the [glossary](glossary.md). The gateway's `/metrics`, its dashboard and "
        f"`/admin/status` give the same names over the last minute, where it can know them: "
        f"{', '.join(f'`{family}`' for family in BALANCE_FAMILIES.values())}.\n\n"
        f"{table(('name', 'unit', 'better', 'definition', 'formula'), rows)}"
        f"{_job_metrics()}{_shared_metrics()}{_autoscaling_metrics()}{_stage_metrics()}"
    )


def _job_metrics() -> str:
    """The metrics of training jobs."""
    rows = ((f"`{m.name}`", m.unit, m.better or "–", m.definition) for m in JOB_METRICS.values())
    return (
        "\n\n## Metrics of training jobs\n\n`trimtab metrics --kind training` prints this list.\n\n"
        f"{table(('name', 'unit', 'better', 'definition'), rows)}"
    )


def _shared_metrics() -> str:
    """The metrics of requests and training jobs on the same nodes."""
    rows = ((f"`{m.name}`", m.unit, m.better or "–", m.definition) for m in SHARED_METRICS.values())
    return (
        "\n\n## Metrics of shared clusters\n\nOf requests and training jobs on the same nodes.\n\n"
        f"{table(('name', 'unit', 'better', 'definition'), rows)}"
    )


def _autoscaling_metrics() -> str:
    """The metrics of pools that grow and shrink, without those of requests."""
    own = [m for m in AUTOSCALING_METRICS.values() if m.name not in METRICS]
    rows = ((f"`{m.name}`", m.unit, m.better or "–", m.definition) for m in own)
    return (
        "\n\n## Metrics of autoscaled pools\n\nBeside these, metrics of requests.\n\n"
        f"{table(('name', 'unit', 'better', 'definition'), rows)}"
    )


def _stage_metrics() -> str:
    """The metrics of running chains."""
    rows = ((f"`{f.name}`", f.type.value, ", ".join(f.labels), f.help) for f in STAGE_FAMILIES)
    return (
        "\n\n## Metrics of running chains\n\n`trimtab chain run --metrics-port PORT`, and "
        "`Session(…, metrics_port=PORT)` in Python, serve these at `/metrics` for Prometheus.\n\n"
        f"{table(('name', 'type', 'labels', 'meaning'), rows)}"
    )


def scenario_page() -> str:
    """Every key of a scenario file."""
    return (
        f"{HEAD}# Scenario file\n\n`trimtab scenario show tiny` prints an example, `trimtab scenario check FILE` "
        "checks a file, and `trimtab scenario schema` prints the JSON Schema for editors. "
        f"{_LEGEND}\n\n{_keys_table(scenario_schema())}\n\n## Training jobs\n\nA file with `kind: training`; "
        "`trimtab scenario show elastic-training` prints an example.\n\n"
        f"{_keys_table(TrainingScenario.model_json_schema())}{_shared_keys()}{_autoscaling_keys()}"
    )


def _shared_keys() -> str:
    """The keys of a file of requests and training jobs; those of both are told before."""
    schema = SharedScenario.model_json_schema()
    told = {"Scenario": "Scenario file", "JobsSection": "Training jobs: jobs"}
    seen = {id(schema["$defs"][name]): where for name, where in told.items()}
    return (
        "\n\n## Requests and training jobs\n\nA file with `kind: shared`; `trimtab scenario show shared-cluster` "
        f"prints an example.\n\n{_keys_table(schema, seen)}"
    )


def _autoscaling_keys() -> str:
    """The keys of a file of pools that grow and shrink; those of requests are told before."""
    schema = AutoscalingScenario.model_json_schema()
    seen = {id(schema["$defs"]["Scenario"]): "Scenario file"}
    return (
        "\n\n## Autoscaled pools\n\nA file with `kind: autoscaling`; `trimtab scenario show autoscaling` prints an "
        f"example.\n\n{_keys_table(schema, seen)}"
    )


def gateway_page() -> str:
    """Every key of gateway.yaml: default and meaning."""
    return (
        f"{HEAD}# Gateway file\n\n`trimtab serve --example` prints a commented example, `trimtab serve FILE "
        "--check` checks a file, and `trimtab serve --schema` prints the JSON Schema for editors. "
        f"{_LEGEND}\n\n{_keys_table(config_schema())}"
    )


_LEGEND = (
    "`[]` stands for each entry of a list, `NAME` for a name "
    "that you choose, and `(key: value)` for the fields of one variant."
)


def _keys_table(schema: Mapping[str, Any], seen: dict[int, str] | None = None) -> str:
    """`seen`: tables listed elsewhere → where."""
    listed = _keys(schema, schema, {} if seen is None else seen)
    rows = ((f"`{key}`", default, meaning) for key, default, meaning in listed)
    return table(("key", "default", "meaning"), rows)


def _keys(
    part: Mapping[str, Any], schema: Mapping[str, Any], seen: dict[int, str], path: str = ""
) -> Iterator[tuple[str, ...]]:
    """Path, default and meaning of each key, those of inner tables after the key that holds them.

    A table that several keys may hold is listed once.
    """
    needed = part.get("required", ())
    fields = [(name, field) for name, field in part["properties"].items() if "const" not in field]
    for name, field in sorted(fields, key=lambda item: item[0] not in needed):
        tables, key = list(_tables(field, schema)), path + name
        listed = next((seen[id(inner)] for _, inner in tables if id(inner) in seen), None)
        same = f"; keys as in `{listed}`" if listed else ""
        yield key, "required" if name in needed else _default(field), field.get("description", "") + same
        new = [(prefix, inner) for prefix, inner in tables if id(inner) not in seen]
        seen |= {id(inner): key for _, inner in new}
        for prefix, inner in new:
            yield from _keys(inner, schema, seen, f"{key}{prefix}{_variant(inner)}.")


def _variant(part: Mapping[str, Any]) -> str:
    """One of several tables that a key may hold, named by the value that chooses it."""
    chosen = (f"({key}: {p['const']})" for key, p in part["properties"].items() if "const" in p)
    return next(chosen, "")


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    return "–" if isinstance(value, dict | list) or value in (None, "") else f"`{json.dumps(value)}`"


def _tables(field: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tables that a field may hold, each with the path to it: itself, entries, or named ones."""
    if "$ref" in field:
        field = schema["$defs"][field["$ref"].rsplit("/", 1)[-1]]
    if "properties" in field:
        yield "", field
    for branch in field.get("anyOf", field.get("oneOf", ())):
        yield from _tables(branch, schema)
    for key, prefix in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(field.get(key), dict):
            yield from ((prefix + further, inner) for further, inner in _tables(field[key], schema))


def command_line_page() -> str:
    """Every command, from its own help."""
    root = typer.main.get_command(app)
    return f"{HEAD}# Command line\n\n" + "\n".join(_command("trimtab", root))


def _command(name: str, command: Any) -> Iterator[str]:
    children = getattr(command, "commands", {})
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([name, *(_argument(p) for p in arguments), *(["COMMAND"] if children else [])])
    yield f"## {name}\n\n{_plain(command.help or '')}\n\n```text\n{usage} [OPTIONS]\n```\n"
    rows = [(f"`{_argument(p)}`", *_default_and_meaning(p)) for p in arguments]
    context = typer.Context(command)
    options = [p for p in command.params if p not in arguments and not p.hidden]
    rows += [(f"`{_option(p, context)}`", *_default_and_meaning(p)) for p in options]
    if rows:
        yield table(("parameter", "default", "meaning"), rows)
    if command.epilog:
        yield _epilog(_plain(command.epilog))
    for child, inner in children.items():
        yield from _command(f"{name} {child}", inner)


def _plain(markup: str) -> str:
    """A help text without the colours of the terminal."""
    return re.sub(r"\[/?(?:dim|bold|cyan)\]", "", markup).replace("[[", "[").strip()


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required else f"[{name}]"


def _option(parameter: Any, context: Any) -> str:
    """Names and value, without the notation of types, which differs between versions of typer."""
    text = (parameter.get_help_record(context) or ("",))[0]
    is_choice = "|" in text
    return text if is_choice else re.sub(r"<(?!bool)[^>]+>", "VALUE", text).replace(" <bool>", "")


def _default_and_meaning(parameter: Any) -> tuple[str, str]:
    """What a parameter is if it is not given, by its help where that says it, and its meaning."""
    meaning, _, told = _plain(parameter.help or "").partition("Default: ")
    return (told or _default_of(parameter)).strip().removesuffix("."), meaning.strip()


def _default_of(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        return "required"
    if isinstance(default, bool):
        return "on" if default else "off"
    is_shown = isinstance(default, str | int | float | Path) and str(default) != ""
    return f"`{getattr(default, 'value', default)}`" if is_shown else "–"


def _epilog(text: str) -> str:
    """Examples as a block of commands, the rest as it is."""
    blocks = [part.strip() for part in text.split("\n\n") if part.strip()]
    commands = [part for part in blocks if part.startswith("trimtab ")]
    rest = [part for part in blocks if part not in commands and part not in ("Examples", "Exit codes")]
    lines = "\n".join(commands)
    return (f"```sh\n{lines}\n```\n\n" if commands else "") + "".join(f"{part}\n\n" for part in rest)


def traces_page() -> str:
    """Canonical columns, formats and public traces."""
    comments = _field_comments(inspect.getsource(inspect.getmodule(traces.formats) or traces))["COLUMNS"]
    columns = [(f"`{name}`", str(kind), comments.get(name, "")) for name, kind in COLUMNS.items()]
    public = [(f"`{t.name}`", f"`{t.format}`", t.licence, t.citation) for t in CATALOGUE]
    formats = ", ".join(f"`{name}`" for name in traces.FORMAT_NAMES)
    return (
        f"{HEAD}# Traces\n\n## Canonical columns\n\nEvery format becomes a table of these columns. Only "
        f"`arrival_s` is always there.\n\n{table(('column', 'type', 'meaning'), columns)}\n"
        f"A blank, `N/A`, `NULL` and `None` mean no value, in every column. Without a `size` it is computed: output "
        "tokens + 0.05 × prompt tokens, or steps × images.\n\n"
        f"## Formats\n\ntrimtab recognises {formats}, plain or gzipped; Parquet, CSV and JSONL files of other "
        "columns need a mapping, see [Bring your own logs](../guides/own-columns.md). Recordings of the "
        "gateway are traces too.\n\n## Mapping\n\nThe keys of a mapping file (`--mapping`), of `mapping:` under "
        f"`workload.trace`, and of `trimtab.read_trace`.\n\n{_keys_table(TraceMapping.model_json_schema())}\n"
        "## Public traces\n\n`trimtab trace download NAME` fetches one from its "
        f"publisher.\n\n{table(('name', 'format', 'licence', 'source'), public)}"
    )


def policy_inputs_page() -> str:
    """The records and arrays that `dispatch`, `order` and `plan` are given."""
    found = _field_comments(inspect.getsource(view))
    parts = [f"## {name}\n\n{_about(name)}{_fields(fields)}" for name, fields in found.items() if fields]
    return (
        f"{HEAD}# What a policy sees\n\nThe arrays and records of `trimtab.domain.view`, with their types and "
        "shapes. `f8` is a 64-bit float, `i4` a 32-bit integer, `u1` a byte. Times are seconds. Record arrays "
        "are read by column: `view.nodes.in_flight[j]`.\n\n" + "\n".join(parts)
    )


def _about(name: str) -> str:
    documentation = inspect.getdoc(getattr(view, name, None)) if not name.isupper() else None
    return f"{documentation}\n\n" if documentation else ""


def _fields(fields: Mapping[str, str]) -> str:
    return table(("field", "meaning"), ((f"`{name}`", meaning) for name, meaning in fields.items()))


def _field_comments(source: str) -> dict[str, dict[str, str]]:
    """Declared table → field → the comment on its line, with the field's type where the line has one."""
    lines = source.splitlines()
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        found |= {name: _commented(lines, node) for name in _declared(node)}
    return found


def _declared(node: ast.stmt) -> list[str]:
    """The name of a table that a statement declares: a NamedTuple, a dtype, or a mapping of columns."""
    if isinstance(node, ast.ClassDef) and any(ast.unparse(b) == "NamedTuple" for b in node.bases):
        return [node.name]
    if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("np.dtype("):
        return [ast.unparse(target) for target in node.targets]
    is_mapping = isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)
    return [ast.unparse(node.target)] if is_mapping else []


_FIELD = re.compile(
    r"""^\s*(?:\("(?P<a>\w+)",\s*"(?P<t>\w+)"[^#]*|"(?P<b>\w+)":[^#]*|(?P<c>\w+):\s*(?:Any|Annotated\[Any,\s*(?P<d>[^#]*)\])\s*)(?:\#\s*(?P<text>.*))?$"""
)


def _commented(lines: list[str], node: ast.stmt) -> dict[str, str]:
    found = {}
    for line in lines[node.lineno : node.end_lineno]:
        if match := _FIELD.match(line):
            kind = match["t"] or _kind(match["d"] or "")
            found[match["a"] or match["b"] or match["c"]] = "; ".join(filter(None, (kind, match["text"])))
    return found


def _kind(declaration: str) -> str:
    """`array("f8", "nodes", "items")` as `f8 [nodes, items]`."""
    _, *words = re.findall(r"\w+", declaration) or ("",)
    return " ".join([*words[:1], f"[{', '.join(words[1:])}]"]) if words[1:] else "".join(words)


PUBLIC = {
    "trimtab": (trimtab, "Simulate, compare, write a policy"),
    "trimtab.domain.cluster": (cluster, "The cluster that a policy is given"),
    "trimtab.domain.planning": (planning, "What a planner is given and may ask for"),
    "trimtab.domain.requests": (requests, "Requests, and how they end"),
    "trimtab.policies": (policies, "The catalogue of policies"),
    "trimtab.traces": (traces, "Traces"),
    "trimtab.metrics": (metrics, "Metrics and statistics"),
    "trimtab.forecast": (forecast, "Forecasts"),
    "trimtab.forecast.queueing": (queueing, "Queueing formulas"),
    "trimtab.solvers": (solvers, "Assignment by optimisation"),
    "trimtab.experiments.compare": (comparing, "Comparing another kind of work"),
    "trimtab.jobs": (jobs, "Durable jobs"),
    "trimtab.errors": (errors, "Errors"),
}


def python_page() -> str:
    """Every public name; mkdocstrings fills in the documentation when the site is built."""
    paths = {name: list(_public(name, module)) for name, (module, _) in PUBLIC.items()}
    first: dict[str, str] = {}
    for name, found in paths.items():
        first |= {path: name for path in found if path not in first}
    parts = "".join(
        _section([p for p in found if first[p] == name], PUBLIC[name][1]) for name, found in paths.items()
    )
    return (
        f"{HEAD}# Python API\n\n`import trimtab as tt`. The site shows the documentation of each name; in the "
        f"repository it is in the source.\n{parts}"
    )


def _section(paths: list[str], title: str) -> str:
    return f"\n## {title}\n\n" + "\n\n".join(f"::: {path}" for path in paths) + "\n"


def _public(name: str, module: ModuleType) -> Iterator[str]:
    """Where each public name of a module is defined."""
    for public in getattr(module, "__all__", None) or _defined(module):
        found = getattr(module, public)
        home = getattr(found, "__module__", None)
        is_own = isinstance(found, type) or inspect.isfunction(found)
        yield f"{home}.{found.__name__}" if is_own and str(home).startswith("trimtab") else f"{name}.{public}"


def _defined(module: ModuleType) -> list[str]:
    own = (n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__)
    return sorted(n for n in own if not n.startswith("_"))


PAGES: dict[str, Callable[[], str]] = {
    "concepts/needs.md": needs_page,
    "allocators/index.md": allocators_page,
    **{f"allocators/{name}.md": lambda name=name: allocator_page(name) for name in NAMES_OF_ALLOCATORS},
    "policies/index.md": policies_page,
    **{f"policies/{name}.md": lambda name=name: policy_page(name) for name in NAMES_OF_POLICIES},
    "reference/command-line.md": command_line_page,
    "reference/gateway-configuration.md": gateway_page,
    "reference/metrics.md": metrics_page,
    "reference/policy-inputs.md": policy_inputs_page,
    "reference/python.md": python_page,
    "reference/scenario.md": scenario_page,
    "reference/traces.md": traces_page,
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(page(), encoding="utf-8")
        print(f"wrote docs/{name}")
    sys.path.insert(0, str(FOLDER.parent))
    from bench.ages import mark_pages

    for changed in mark_pages():
        print(f"marked the age of docs/benchmarks/{changed.name}")
