"""The catalogue finds policies by walking this package, and reads the policy names that users write.

least-expected-wait                   a policy, with its own order or first come first served
power-of-d(d=3)+edf                   with parameters, and with the order of another
path/to/my_policy.py:MyPolicy         a class in a file
my_package.my_module:MyPolicy(c=2)    a class in a module, installed or in the current folder
tuned.yaml                            the policy that `trimtab tune` wrote there
learned-dispatch(artifact=w.safetensors)   with learned weights
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import math
import pkgutil
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeGuard

from trimtab.domain.artifact import NONE, Artifact
from trimtab.domain.parameters import declared_search, default_of, kind_text, kinds_of, parameters_of
from trimtab.domain.policy import Decider, Policy, members
from trimtab.errors import PolicyNotFound, UsageError
from trimtab.validation.named_classes import class_at, label_of, section, values_of
from trimtab.validation.tuned_policy import spelled

PolicySpec: TypeAlias = str | Policy | type[Policy]

DEFAULT_COMPARISON = (
    "random",
    "round-robin",
    "weighted-round-robin",
    "least-connections",
    "power-of-d",
    "least-expected-wait",
    "least-expected-completion",
    "late-binding",
    "auto",
    "bounded-hash",
    "least-expected-wait+sjf",
    "least-expected-wait+edf",
    "least-expected-wait+priority-ageing",
)
CHAIN_COMPARISON = (  # for runs of chains; without `auto`, as one rollout serves thousands of stages
    "random",
    "round-robin",
    "least-connections",
    "least-expected-wait",
    "least-expected-completion",
    "congestion-aware",
    "late-binding",
    "least-expected-completion+fair-runs",
    "heft",
    "peft",
    "cpop",
    "min-min",
    "sufferage",
    "downstream-aware",
)
DEFAULT_ORDER = "fcfs"  # of every policy without an order of its own

_PART = r"((?:[^+()]+\.py:)?[\w.:-]+)\s*(?:\(([^()]*)\))?"  # a path has no + and no brackets
_SPEC = re.compile(rf"\s*{_PART}\s*(?:\+\s*{_PART})?\s*")
_EXPECTED = "name, name+order, file.py:Class or module:Class, each with (parameter=value, …), or tuned.yaml"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number or word that a policy may be given."""

    name: str
    kind: str  # what it may be, in words
    default: Any


@dataclass(frozen=True, slots=True)
class Description:
    """The catalogue's entry for a policy."""

    name: str
    kind: str  # "dispatch", "order" or "dispatch and order"
    idea: str
    source: str
    documentation: str
    parameters: tuple[Parameter, ...]


def names(kind: str | None = None) -> list[str]:
    """Names in the catalogue, sorted; `kind` "dispatch" or "order" gives only policies that bring one."""
    return [name for name, cls in sorted(_catalogue().items()) if kind is None or kind in _kind(cls)]


def find(spec: PolicySpec) -> Decider:
    """The policy that chooses nodes, and the policy that orders waiting work.

    Both are one object if the policy's own order counts. A policy without an order serves first come, first
    served. A class stands for its instance with all parameters at their default.

    Raises PolicyNotFound for a name that the catalogue lacks, UsageError for anything else that is wrong.
    """
    if _is_policy(spec):
        spec = _made(spec, spec.__name__)
    if isinstance(spec, Policy):
        return _pair(spec, None, type(spec).__name__)
    if not isinstance(spec, str):
        raise UsageError(
            "is no policy", field="policy", value=spec, expected=f"a Policy object, or {_EXPECTED}"
        )
    spec = spelled(spec)
    (name, arguments), order = _parse(spec)
    return _pair(_build(name, arguments), _build(*order, kind="order") if order else None, spec)


def canonical(spec: PolicySpec) -> str:
    """The shortest name of the same policy, without defaults and without a `+fcfs` that changes nothing."""
    spec = spelled(spec) if isinstance(spec, str) else spec
    decider = find(spec)
    name, order = _label(decider.dispatch, spec), decider.order
    if decider.has_own_order:
        return name
    return f"{name}+{_label(order, spec.rpartition('+')[2] if isinstance(spec, str) else order)}"


def respelled(spec: str, decider: Decider) -> str:
    """The text of a policy with the parameters of another instance of the same classes."""
    (name, _), order = _parse(spelled(spec))
    text = label_of(name, decider.dispatch, _as_given)
    if order is None or decider.has_own_order:
        return text
    return f"{text}+{label_of(order[0], decider.order, _as_given)}"


def _as_given(value: Any) -> str:
    """A parameter's value as a user gives it."""
    return value.path or NONE if isinstance(value, Artifact) else str(value)


def describe(name: str) -> Description:
    """The catalogue's entry for a policy; `name` as in `find`, without an order."""
    (name, _), order = _parse(name)
    if order:
        raise UsageError("describes one policy at a time", field="policy", value=name, expected="no +order")
    cls = policy_class(name)
    text = inspect.getdoc(cls) or ""
    parameters = described_parameters(cls)
    return Description(
        cls.name or cls.__name__, _kind(cls), cls.idea(), section(text, "Source"), text, parameters
    )


def described_parameters(cls: type) -> tuple[Parameter, ...]:
    """The parameters of a policy, an allocator or a part of one."""
    kinds, given = kinds_of(cls), [(f.name, default_of(f)) for f in parameters_of(cls)]
    return tuple(
        Parameter(name, _shown_kind(kinds.get(name)), repr(value) if isinstance(value, Artifact) else value)
        for name, value in given
    )


def _shown_kind(kind: Any) -> str:
    search = declared_search(kind)
    return kind_text(kind) if search is None else f"{kind_text(kind)}; {search.text}"


def policy_class(name: str, kind: str | None = None) -> type[Policy]:
    """The class that a name, `file.py:Class` or `module:Class` stands for. Raises as `find` does.

    The message about an unknown name lists the policies of this `kind`, as in `names`.
    """
    return class_at(name, Policy) or _from_catalogue(name, kind)


@functools.cache
def _from_own_file(name: str) -> type[Policy] | None:
    """The policy in the file of its name. The whole catalogue would take a tenth of a short run to import."""
    if re.fullmatch(r"[a-z0-9-]+", name):
        for file in Path(__file__).parent.glob(f"*/{name.replace('-', '_')}.py"):
            module = importlib.import_module(f"{__package__}.{file.parent.name}.{file.stem}")
            for cls in _named(module):
                if cls.name == name:
                    return cls
    return None


@functools.cache
def _catalogue() -> dict[str, type[Policy]]:
    modules = pkgutil.walk_packages([str(Path(__file__).parent)], f"{__package__}.")
    found = (cls for info in modules for cls in _named(importlib.import_module(info.name)))
    return {cls.name: cls for cls in found}


def _named(module: ModuleType) -> list[type[Policy]]:
    """The policies that a module itself defines and names."""
    return [
        cls
        for cls in vars(module).values()
        if _is_policy(cls) and cls.__module__ == module.__name__ and cls.name
    ]


def _is_policy(thing: object) -> TypeGuard[type[Policy]]:
    return isinstance(thing, type) and issubclass(thing, Policy)


def _kind(cls: type[Policy]) -> str:
    return " and ".join(k for k, has in (("dispatch", cls.dispatches()), ("order", cls.orders())) if has)


def _parse(spec: str) -> tuple[tuple[str, str | None], tuple[str, str | None] | None]:
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UsageError("is no name of a policy", field="policy", value=spec, expected=_EXPECTED)
    name, arguments, order, order_arguments = match.groups()
    return (name, arguments), (order, order_arguments) if order else None


def _pair(policy: Policy, order: Policy | None, spec: str) -> Decider:
    if not policy.dispatches():
        expected = f"a policy with a dispatch, such as least-expected-wait+{policy.name or 'order'}"
        raise UsageError(
            "chooses no nodes: it has no dispatch", field="policy", value=spec, expected=expected
        )
    if order is None or (_is_default(order) and not policy.orders()):
        return Decider.of(policy)
    if not order.orders():
        raise UsageError(
            "brings no order", field="policy", value=spec, expected=f"+ one of {', '.join(names('order'))}"
        )
    if any(member.binds for member in members(policy)):
        problem = "plans itself which waiting request is next, so an order would have no effect"
        expected = f"{policy.name} alone, or late-binding+{order.name}"
        raise UsageError(problem, field="policy", value=spec, expected=expected)
    return Decider(policy, order)


def _is_default(order: Policy) -> bool:
    return type(order) is _from_catalogue(DEFAULT_ORDER, "order")


def _label(policy: Policy, spec: PolicySpec) -> str:
    """The policy's name with the parameters that are not at their default."""
    name = policy.name
    if not name:
        name = _parse(spec)[0][0] if isinstance(spec, str) else type(policy).__name__
    return label_of(name, policy)


def _build(name: str, arguments: str | None, kind: str | None = None) -> Policy:
    cls = policy_class(name, kind)
    return _made(cls, name, **values_of(cls, name, arguments or ""))


def _made(cls: type[Policy], name: str, /, **given: Any) -> Policy:
    try:
        policy = cls(**given)
    except UsageError:
        raise
    except Exception as error:  # whatever a class of the user's own may raise
        raise UsageError(f"can't be made: {error}", field="policy", value=name) from error
    period_s = policy.plan_period_s
    if not 0.0 <= period_s < math.inf:
        expected = "seconds, 0 for never"
        raise UsageError("out of range", field=f"{name}.plan_period_s", value=period_s, expected=expected)
    return policy


def _from_catalogue(name: str, kind: str | None) -> type[Policy]:
    if (cls := _from_own_file(name) or _catalogue().get(name)) is not None:
        return cls
    known, problem = names(kind), f"no such {kind or 'policy'}"
    expected = f"one of {', '.join(known)}"
    if nearest := difflib.get_close_matches(name, known, n=3, cutoff=0.4):
        problem += f"; nearest: {', '.join(nearest)}"
        expected = "a name that `trimtab policies` lists, or file.py:Class"
    raise PolicyNotFound(problem, field="policy", value=name, expected=expected)
