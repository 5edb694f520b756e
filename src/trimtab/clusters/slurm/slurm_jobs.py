"""Jobs as Slurm tells them: what they take, and what they demand of nodes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from trimtab.clusters.placement.ledger import CPU, GIB, MEMORY, WHOLE_GPU, Ledger, Place
from trimtab.clusters.slurm.commands import Json
from trimtab.clusters.slurm.slurm_nodes import GPU, JOBS, MIB, Node, gres, number, plain, words
from trimtab.traces.slurm import node_names

MARK: Final = "trimtab: "  # in the AdminComment of jobs
_DEFAULT_S: Final = 86_400.0  # of a job without a time limit
_PINNED: Final = re.compile(r"on (\S+) by (.+?)(?:; asked for (\S+))?$")
RUNS: Final = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING", "SIGNALING", "STAGE_OUT"}
_NOT_YET: Final = {"BeginTime", "Dependency", "DependencyNeverSatisfied", "JobArrayTaskLimit"}
_SHARED_GPUS: Final = ("gres/shard", "gres/mps")


@dataclass(frozen=True, slots=True)
class Rules:
    """What of slurm.conf matters to what a job takes."""

    counts_memory: bool = True  # SelectTypeParameters with Memory
    whole_cores: bool = True  # a job takes all threads of a core
    whole_nodes: bool = False  # select/linear


@dataclass(frozen=True, slots=True)
class Job:
    """A job, or one task of an array."""

    id: str  # 12, or 12_3
    state: str = "RUNNING"
    reason: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    comment: str = ""
    mark: str = ""  # what trimtab wrote on it, without MARK
    other_comment: str = ""  # the AdminComment of others, before it
    submit_s: float = 0.0
    eligible_s: float = 0.0  # 0 = not told
    start_s: float = 0.0
    end_s: float = 0.0
    expected_s: float = _DEFAULT_S  # its limit
    limit_s: float = 0.0  # 0 = none
    priority: int = 0
    n_nodes: int = 1
    needs: Mapping[str, int] = field(default_factory=dict)  # of each node
    node_list: tuple[str, ...] = ()  # where it runs or ran
    required: tuple[str, ...] = ()  # ReqNodeList
    excluded: frozenset[str] = frozenset()
    features: tuple[frozenset[str], ...] = ()  # any of these; () = any node
    is_exclusive: bool = False
    parents: frozenset[str] = frozenset()  # jobs that it depends on
    tasks_at_once: int = 0  # of its array; 0 = any number
    refusal: str = ""  # why trimtab cannot take it; "" = it can

    @property
    def runs(self) -> bool:
        """Whether it holds nodes."""
        return self.state in RUNS and bool(self.node_list)

    @property
    def is_held(self) -> bool:
        """Whether its user holds it: trimtab may release it."""
        return self.state == "PENDING" and self.reason in ("JobHeldUser", "user_hold")

    @property
    def pin(self) -> tuple[str, ...]:
        """Nodes that trimtab chose; () = none."""
        found = _PINNED.match(self.mark)
        return self.required if found and self.required else ()

    @property
    def asked(self) -> tuple[str, ...]:
        """Nodes that its user demands."""
        found = _PINNED.match(self.mark)
        if found is None:
            return self.required
        return tuple(node_names(found[3])) if found[3] else ()

    @property
    def is_pinned(self) -> bool:
        """Whether it was released to the nodes that trimtab chose, and may begin there any moment."""
        return self.state == "PENDING" and not self.is_held and bool(self.pin) and self.reason not in _NOT_YET

    @property
    def array(self) -> str:
        """The array that it is of, or itself."""
        return self.id.partition("_")[0]

    def parts(self) -> list[Part]:
        """What it takes of each of its nodes."""
        return [Part(f"{self.id}.{k}", self, self.needs) for k in range(self.n_nodes)]


@dataclass(frozen=True, slots=True)
class Part:
    """What a job takes of one node."""

    uid: str
    job: Job
    needs: Mapping[str, int]
    image: str = ""

    @property
    def gpu_milli(self) -> int:
        """Thousandths of GPUs."""
        return WHOLE_GPU * self.needs.get(GPU, 0)

    @property
    def demand(self) -> tuple[float, float, float]:
        """Cores, GiB of memory, thousandths of GPUs."""
        return self.needs.get(CPU, 0) / 1000.0, self.needs.get(MEMORY, 0) / GIB, float(self.gpu_milli)

    @property
    def priority(self) -> int:
        """The job's."""
        return self.job.priority

    @property
    def created_s(self) -> float:
        """When the job was submitted."""
        return self.job.submit_s

    @property
    def expected_s(self) -> float:
        """The job's limit."""
        return self.job.expected_s

    @property
    def repels(self) -> bool:
        """Whether it wants the node for itself."""
        return self.job.is_exclusive


SlurmLedger = Ledger[Node, Part]
SlurmPlace = Place[Part]


def pin_mark(names: Iterable[str], policy: str, asked: Iterable[str]) -> str:
    """What is written on a job that was placed."""
    demanded = ",".join(asked)
    return f"on {','.join(names)} by {policy}" + (f"; asked for {demanded}" if demanded else "")


def jobs_of(given: Json, rules: Rules, threads: int = 1) -> list[Job]:
    """A job of `squeue --json`; each task of an array that waits is one. `threads`: of a core."""
    if (tasks := given.get("array_task_string")) and number(given.get("array_job_id")):
        ids = [f"{number(given['array_job_id'])}_{k}" for k in _tasks(str(tasks))]
    elif given.get("array_task_id") is not None and number(given.get("array_job_id")):
        ids = [f"{number(given['array_job_id'])}_{number(given['array_task_id'])}"]
    else:
        ids = [str(number(given["job_id"]))]
    return [_job(given, name, rules, threads) for name in ids]


def _job(given: Json, name: str, rules: Rules, threads: int) -> Job:
    state = next(iter(words(given.get("job_state"))), "UNKNOWN")
    names = tuple(node_names(plain(given.get("nodes"))))
    n_nodes = len(names) or max(1, number(given.get("node_count")))
    problems: list[str] = []
    needs = _needs(given, n_nodes, rules, threads, problems)
    limit_s = 60.0 * number(given.get("time_limit"))
    other, has_mark, mark = str(given.get("admin_comment") or "").partition(MARK)
    shared = words(given.get("shared"))
    return Job(
        id=name,
        state=state,
        reason=str(given.get("state_reason") or ""),
        user=str(given.get("user_name") or number(given.get("user_id"))),
        account=str(given.get("account") or ""),
        partition=str(given.get("partition") or ""),
        comment=plain(given.get("comment")),
        mark=mark if has_mark else "",
        other_comment=other,
        submit_s=float(number(given.get("submit_time"))),
        eligible_s=float(number(given.get("eligible_time"))),
        start_s=float(number(given.get("start_time"))),
        end_s=float(number(given.get("end_time"))),
        expected_s=limit_s or _DEFAULT_S,
        limit_s=limit_s,
        priority=-number(given.get("nice")),
        n_nodes=n_nodes,
        needs=needs,
        node_list=names,
        required=tuple(node_names(plain(given.get("required_nodes")))),
        excluded=frozenset(node_names(plain(given.get("excluded_nodes")))),
        features=_features(plain(given.get("features")), problems),
        is_exclusive=rules.whole_nodes
        or bool(shared & {"NONE", "USER", "MCS"})
        or _wants_all_memory(given, rules),
        parents=frozenset(re.findall(r":(\d+)", str(given.get("dependency") or ""))),
        tasks_at_once=number(given.get("array_max_tasks")),
        refusal="; ".join(problems + _unsupported(given)),
    )


def _needs(given: Json, n_nodes: int, rules: Rules, threads: int, problems: list[str]) -> dict[str, int]:
    """What a job takes of each node; what it holds, if it runs."""
    tasks = max(1, math.ceil(number(given.get("tasks")) / n_nodes), number(given.get("tasks_per_node")))
    cpus = max(
        math.ceil(number(given.get("cpus")) / n_nodes),
        number(given.get("minimum_cpus_per_node")),
        tasks * number(given.get("cpus_per_task")),
        1,
    )
    if rules.whole_cores:
        cpus = threads * math.ceil(cpus / threads)
    asked = gres(str(given.get("tres_per_node") or ""))
    for name, amount in gres(str(given.get("tres_per_job") or "")).items():
        asked[name] = max(asked.get(name, 0), math.ceil(amount / n_nodes))
        if amount % n_nodes:
            problems.append(
                f"{amount} {name} cannot be shared evenly by {n_nodes} nodes: use --gpus-per-node"
            )
    for name, amount in gres(str(given.get("tres_per_task") or "")).items():
        asked[name] = max(asked.get(name, 0), amount * tasks)
    details = given.get("gres_detail") or ()
    if details:  # it runs: what it was given on the first node
        asked = gres(str(details[0]))
    memory = 0
    if rules.counts_memory:
        memory = number(given.get("memory_per_node")) or number(given.get("memory_per_cpu")) * cpus
        per_gres = gres(str(given.get("memory_per_tres") or ""))
        memory = max([memory, *(per_gres[name] * asked.get(name, 0) for name in per_gres)])
    needs = {CPU: 1000 * cpus, MEMORY: MIB * memory, JOBS: 1, **asked}
    return {name: amount for name, amount in needs.items() if amount}


def _wants_all_memory(given: Json, rules: Rules) -> bool:
    """Whether a job takes all memory of its nodes (--mem=0)."""
    told = given.get("memory_per_node")
    is_told = told.get("set", False) if isinstance(told, Mapping) else told is not None
    return rules.counts_memory and is_told and not number(told)


def _unsupported(given: Json) -> list[str]:
    """What of a job trimtab does not decide about: left out would be a job on a wrong node."""
    asked = " ".join(str(given.get(f"tres_per_{what}") or "") for what in ("node", "job", "task"))
    found = [
        ("a reservation", given.get("resv_name")),
        ("parts of other shapes (a heterogeneous job)", number(given.get("het_job_id"))),
        ("GPUs per socket", given.get("tres_per_socket")),
        ("neighbouring nodes (--contiguous)", given.get("contiguous") is True),
        ("shares of GPUs", any(name in gres(asked.replace(" ", ",")) for name in _SHARED_GPUS)),
    ]
    return [f"{what}: is for Slurm's own scheduler" for what, is_asked in found if is_asked]


def _features(text: str, problems: list[str]) -> tuple[frozenset[str], ...]:
    """Alternatives of features that a node must have together."""
    if not text:
        return ()
    plain = text.replace(",", "&")
    if re.search(r"[\[\]()*!]", plain) or ("&" in plain and "|" in plain):
        problems.append(f"--constraint {text}: expected features joined by & or by |")
        return ()
    return tuple(frozenset(alternative.split("&")) for alternative in plain.split("|"))


def _tasks(text: str) -> Iterable[str]:
    """Tasks of an array, such as `0-3,7%2`."""
    return node_names(f"[{text.partition('%')[0]}]")
