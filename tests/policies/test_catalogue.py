"""What users write to name a policy, and what they are told when it is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.builders import cluster, requests, run
from trimtab.domain.needs import Need
from trimtab.domain.options import Options
from trimtab.errors import PolicyNotFound, UsageError
from trimtab.policies import CHAIN_COMPARISON, DEFAULT_COMPARISON, canonical, describe, find, names
from trimtab.policies.load_aware.power_of_d import PowerOfD
from trimtab.policies.orders.fcfs import Fcfs
from trimtab.policies.orders.priority_ageing import PriorityAgeing

OWN = """
from dataclasses import dataclass
from trimtab.domain.policy import Policy

@dataclass(frozen=True)
class First(Policy):
    shift: int = 0
    def init(self, cluster):
        from trimtab.domain.view import memory
        return memory(ints=[self.shift])
    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        ranking[0] = memory.ints[0]
        return 1

class Mute(Policy):
    pass

class Latest(Policy):
    @staticmethod
    def order(view, plan, work, memory):
        return -work.arrival_s

class Both(First):
    order = Latest.order

class Stranger:
    pass
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "my own policy.py"
    path.write_text(OWN)
    return path


def test_the_catalogue_holds_what_others_rely_on() -> None:
    dispatchers = {
        "random",
        "round-robin",
        "weighted-round-robin",
        "least-connections",
        "power-of-d",
        "least-expected-wait",
        "least-expected-completion",
        "bounded-hash",
    }
    assert dispatchers <= set(names("dispatch"))
    assert {"fcfs", "sjf", "edf", "priority-ageing"} <= set(names("order"))
    assert names() == sorted({*names("dispatch"), *names("order")})


def test_default_comparison_names_policies_in_their_shortest_form() -> None:
    for comparison in (DEFAULT_COMPARISON, CHAIN_COMPARISON):
        assert [canonical(spec) for spec in comparison] == list(comparison)
    assert len(DEFAULT_COMPARISON) == 13
    assert not any(Need.ROLLOUT in find(spec).dispatch.all_needs for spec in CHAIN_COMPARISON)


def test_parameters_and_order() -> None:
    assert find("power-of-d(d=3)+priority-ageing(weight_s=5)") == (
        PowerOfD(d=3),
        PriorityAgeing(weight_s=5.0),
    )
    assert find(PowerOfD(d=4)) == (PowerOfD(d=4), PowerOfD(d=4))


def test_first_come_first_served_is_every_policys_own_order_unless_it_brings_another(own: Path) -> None:
    for spec in ("power-of-d", "power-of-d+fcfs"):
        policy, order = find(spec)
        assert order is policy
    assert find(f"{own}:Both")[1].orders()
    assert find(f"{own}:Both+fcfs")[1] == Fcfs()
    assert canonical(f"{own}:Both+fcfs") == f"{own}:Both+fcfs"
    assert canonical(f"{own}:Both") == f"{own}:Both"


@pytest.mark.parametrize(
    ("spec", "short"),
    [
        ("least-expected-wait+fcfs", "least-expected-wait"),
        (" power-of-d ( d = 2 ) + sjf", "power-of-d+sjf"),
        ("power-of-d(d=3)", "power-of-d(d=3)"),
        ("random+priority-ageing(weight_s=30)", "random+priority-ageing"),
        ("bounded-hash(points=8, c=2)+edf", "bounded-hash(c=2.0,points=8)+edf"),
    ],
)
def test_canonical(spec: str, short: str) -> None:
    assert canonical(spec) == short
    assert find(short) == find(spec)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("power-of-d(k=3)", "k=3.*one of: d"),
        ("power-of-d(3)", "parameter=value"),
        ("power-of-d(d=2.5)", r"power-of-d\.d.*2\.5.*int"),
        ("random(d=2)", "it has no parameters"),
        ("random+round-robin", "brings no order.*edf, .*fcfs"),
        ("sjf", "chooses no nodes.*least-expected-wait\\+sjf"),
        ("", "is no name of a policy"),
        ("random+", "is no name of a policy"),
        ("random(", "is no name of a policy"),
        ("a.py", "names no class.*a.py:Class"),
        ("missing.py:P", r"missing\.py: can't be read: No such file"),
        ("no_such_package.x:P", "no_such_package.x: does not import: ModuleNotFoundError"),
        ("trimtab.policies.orders.sjf:Sjff", "Sjff: has no such class.*there: Sjf"),
    ],
)
def test_what_is_wrong_is_said(spec: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        find(spec)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("spec", [5, None, ["random"], object])
def test_what_is_no_policy_at_all(spec: object) -> None:
    with pytest.raises(UsageError, match=r"policy: is no policy.*a Policy object"):
        find(spec)  # type: ignore[arg-type]


def test_a_class_stands_for_its_instance() -> None:
    assert find(PowerOfD) == find(PowerOfD())
    assert canonical(PowerOfD) == "power-of-d"


def test_an_unknown_order_lists_orders_only() -> None:
    with pytest.raises(PolicyNotFound, match="no such order") as caught:
        find("random+xyzzy")
    assert caught.value.expected == f"one of {', '.join(names('order'))}"


def test_a_module_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_package_here").mkdir()
    (tmp_path / "a_package_here" / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert canonical("a_package_here.own:First(shift=2)") == "a_package_here.own:First(shift=2)"
    assert sys.path == before


def test_unknown_names_bring_the_nearest() -> None:
    with pytest.raises(PolicyNotFound, match="nearest: least-connections") as caught:
        find("least-connection+fcfs")
    assert caught.value.value == "least-connection"
    assert caught.value.expected == "a name that `trimtab policies` lists, or file.py:Class"
    with pytest.raises(PolicyNotFound, match=r"bounded-hash, .*edf"):
        find("xyzzy")


def test_a_class_of_an_installed_module() -> None:
    assert find("trimtab.policies.load_aware.power_of_d:PowerOfD(d=3)+sjf")[0] == PowerOfD(d=3)


def test_a_class_in_a_file(own: Path) -> None:
    policy, order = find(f"{own}:First(shift=2)+{own}:Latest")
    assert (type(policy).__name__, type(order).__name__) == ("First", "Latest")
    c = cluster(3)
    assert set(run(c, requests(c, 20), Options(), policy, order).requests["node_idx"]) == {2}
    assert canonical(f"{own}:First(shift=0)+fcfs") == f"{own}:First"
    assert canonical(f"{own}:First(shift=2)+{own}:Latest") == f"{own}:First(shift=2)+{own}:Latest"
    assert find(f"{own}:First")[0] == find(f"{own}:First")[0]


def test_an_edited_file_is_read_again(own: Path) -> None:
    before = find(f"{own}:First")[0]
    own.write_text(OWN.replace("shift: int = 0", "shift: int = 1"))
    after = find(f"{own}:First")[0]
    assert (before.shift, after.shift) == (0, 1)  # type: ignore[attr-defined]


def test_a_file_has_the_same_module_name_in_every_process(own: Path) -> None:
    script = "import sys; from trimtab.policies import find; print(type(find(sys.argv[1])[0]).__module__)"
    spec = f"{own}:First"
    other = subprocess.run([sys.executable, "-c", script, spec], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == type(find(spec)[0]).__module__
    assert other.stdout.strip() in sys.modules


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Mute", "chooses no nodes"),
        ("Latest", "chooses no nodes"),
        ("Stranger", "Stranger: is not a subclass"),
        ("Absent", "Absent: has no such class.*there: First, Mute, Latest, Both"),
    ],
)
def test_a_class_that_is_no_policy(own: Path, name: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        find(f"{own}:{name}")


def test_a_file_that_does_not_import(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    before = set(sys.modules)
    path.write_text("def (")
    with pytest.raises(UsageError, match=r"broken\.py: does not import: SyntaxError"):
        find(f"{path}:P")
    path.write_text("1 / 0")
    with pytest.raises(UsageError, match=r"broken\.py: does not import: ZeroDivisionError"):
        find(f"{path}:P")
    assert not [name for name in set(sys.modules) - before if name.startswith("trimtab_policy_broken")]


def test_descriptions(own: Path) -> None:
    power = describe("power-of-d")
    assert (power.name, power.kind) == ("power-of-d", "dispatch")
    assert power.idea in power.documentation
    assert power.source.startswith("Michael Mitzenmacher")
    assert [(p.name, p.kind, p.default) for p in power.parameters] == [("d", "an integer from 1 to 8", 2)]
    assert describe("edf").kind == "order"
    assert describe(f"{own}:First").source == ""
    with pytest.raises(UsageError, match="no \\+order"):
        describe("random+edf")
