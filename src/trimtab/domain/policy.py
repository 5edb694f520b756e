"""The contract of a policy: a slow planner and a fast dispatcher, independent of the host.

A policy is a frozen dataclass of parameters. `dispatch` and `order` are static functions over arrays; marked
with `@kernel` they run compiled, unmarked as plain Python, in the same hosts and with the same results.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.cluster_state import Choice, ClusterState, Request
from trimtab.domain.needs import Degraded, Host, Need
from trimtab.domain.parameters import check_parameters
from trimtab.domain.view import Memory, Plan, View, memory
from trimtab.errors import UsageError

LaneBy: TypeAlias = Literal["", "class", "tenant"]


class Policy:
    """Base of all policies. A subclass writes `choose` or `dispatch`, or `order`, or both.

    Attributes:
        name: its name in the catalogue and in tables.
        draws: how many uniform numbers in [0, 1) one decision uses. `draws[i]` depends on the seed, the
            request and its attempt, never on the policy.
        plan_period_s: seconds between calls of `plan`; 0 = never.
        needs: what it reads beyond the nodes' queues and estimates, and what its host must do for it. A host
            that lacks one of them refuses the policy, unless `degrades` has it. An `order` that needs
            `Need.VIRTUAL_COUNTERS` has keys that may grow while work waits, so the host computes the key of
            the first request of a central queue again before it takes it.
        degrades: need → what the policy does without it, in one sentence.
        lane_by: "tenant" or "class" if its keys may fall while work waits, or depend on the time. Each tenant
            or class then has a lane of its own in the central queues, served first come first served, and
            the host computes the key of each lane's first request anew at every offer. "" = keys are final.
        compares: number of held requests that compete for a free slot. Of the first so many with a candidate,
            the host takes the one whose first candidate has the lowest score, `ranking.score[0]`, then
            compares again. Such a `dispatch` writes nothing to its memory that changes a later decision. 0 =
            requests are offered in turn. A number above 0 implies `Need.HELD_COMPARISON`. Where the order is
            another policy's, its keys come first, and scores decide only between equal keys.
        binds: True if its plans bind waiting requests to nodes, and so decide which one is next. The order of
            another policy is refused: it would have no effect.
    """

    name: ClassVar[str] = ""
    draws: int = 0
    plan_period_s: float = 0.0
    needs: ClassVar[frozenset[Need]] = frozenset()
    degrades: ClassVar[Mapping[Need, str]] = {}
    lane_by: ClassVar[LaneBy] = ""
    compares: ClassVar[int] = 0
    binds: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the parameters. A subclass with a `__post_init__` of its own calls this one first."""
        check_parameters(self, name_of(self))

    @property
    def candidates(self) -> tuple[Policy, ...]:
        """The candidates of a composite policy. `plan.active_idx` selects the active one, at first 0.

        A composite's own functions are those of its first candidate. A newly active candidate starts with a
        new memory and sees every node as changed.
        """
        return ()

    def init(self, cluster: Cluster) -> Memory:
        """Make this policy's memory for one dispatcher."""
        return memory()

    def plan(self, view: View, history: Any, waiting: Any, rollout: Any) -> Plan | None:
        """Make a plan; called every `plan_period_s`. None keeps the plan in force."""
        return None

    def evidence(self, plan: Plan) -> Any:
        """The `planning.Evidence` behind a composite's plan; None = no evidence."""
        return None

    def choose(self, cluster: ClusterState, request: Request) -> Choice:
        """Choose for one request, in plain Python: a node, a ranking of at most 8, HOLD or `reject(reason)`.

        A ranking is a list of nodes, or of pairs (node, score) for a host that compares held requests.
        Every dispatcher of every run calls its own copy of the policy, so attributes serve as memory.
        """
        raise NotImplementedError

    @staticmethod
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Write node indices into `ranking`, best first, and return how many (at most 8).

        `ranking` holds records (node_idx, score): `ranking[i] = j` names node j, `ranking.score[i]` is read
        by a host that compares held requests. Policies read the nodes as `ranking.node_idx[i]`.

        0 holds the request in the central queue; -r rejects it for reason r (`requests.Reason`).
        """
        raise NotImplementedError

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """Queue key of waiting work: least first, ties by arrival. Default: first come, first served."""
        return float(work.arrival_s)

    @property
    def all_needs(self) -> frozenset[Need]:
        """Its needs, with those of its candidates."""
        own = self.needs | ({Need.HELD_COMPARISON} if self.compares else set())
        return own.union(*(candidate.all_needs for candidate in self.candidates))

    def without(self, need: Need) -> str | None:
        """The effect of an unmet need; None = it can't do without. Candidates speak for a composite."""
        if need in self.degrades:
            return self.degrades[need]
        concerned = [c.without(need) for c in self.candidates if need in c.all_needs]
        is_own = need in self.needs or not concerned
        return None if is_own or None in concerned else concerned[0]

    @classmethod
    def dispatches(cls) -> bool:
        """Whether the policy chooses nodes; otherwise it is only an order."""
        return cls.chooses() or cls.dispatch is not Policy.dispatch

    @classmethod
    def chooses(cls) -> bool:
        """Whether `choose` decides: of `choose` and `dispatch`, the nearest class with either defines it."""
        nearest = next(c for c in cls.__mro__ if {"choose", "dispatch"} & vars(c).keys())
        return nearest is not Policy and "choose" in vars(nearest)

    @classmethod
    def orders(cls) -> bool:
        """Whether the policy has its own order."""
        return cls.order is not Policy.order

    @classmethod
    def idea(cls) -> str:
        """First line of its documentation."""
        return (inspect.getdoc(cls) or cls.__name__).splitlines()[0]


class Decider(NamedTuple):
    """The policy that chooses nodes, and the policy that orders waiting work."""

    dispatch: Policy
    order: Policy

    @classmethod
    def of(cls, dispatch: Policy, order: Policy | None = None) -> Decider:
        """A policy with its own order or the order of another policy."""
        return cls(dispatch, order or dispatch)

    @property
    def has_own_order(self) -> bool:
        """Whether one policy does both. Then the order changes with the active candidate of a composite."""
        return self.order is self.dispatch

    @property
    def label(self) -> str:
        """Name in messages."""
        name = name_of(self.dispatch)
        return name if self.has_own_order else f"{name}+{name_of(self.order)}"

    def degraded(self, host: Host, provided: frozenset[Need]) -> tuple[Degraded, ...]:
        """The unmet needs on a host that provides these, and what is done without them.

        Raises UsageError for a need that the policy can't do without.
        """
        if Need.HOLDING in self.dispatch.all_needs:  # it holds requests itself, so they wait at the host
            provided = provided | {Need.CENTRAL_QUEUE}
        found: list[Degraded] = []
        for policy in (self.dispatch,) if self.has_own_order else self:
            unmet = policy.all_needs - provided
            found += [Degraded(name_of(policy), n, _effect(policy, n, host)) for n in Need if n in unmet]
        return tuple(found)


def _effect(policy: Policy, need: Need, host: Host) -> str:
    effect = policy.without(need)
    if effect is None:
        problem = f"needs {need} ({need.meaning}), which this {host.name} does not provide"
        raise UsageError(problem, field="policy", value=name_of(policy), expected=host.remedy(need))
    return effect


def name_of(policy: Policy) -> str:
    """The policy's name in messages."""
    return policy.name or type(policy).__name__


def members(policy: Policy) -> tuple[Policy, ...]:
    """The deciding policies: the candidates of a composite, else the policy itself."""
    return policy.candidates or (policy,)
