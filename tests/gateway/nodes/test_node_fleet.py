"""The fleet: who there is, who gets work, how much."""

import asyncio
import logging

import pytest

from support.gateway.node_world import Heard, VirtualLoop, fleet_of, spec
from trimtab.errors import ConfigError
from trimtab.gateway.model import Health
from trimtab.gateway.nodes.fleet import Fleet, FleetOptions
from trimtab.gateway.nodes.health_rule import SlowStartOptions
from trimtab.gateway.nodes.node_state import Hold, Listing

pytestmark = pytest.mark.event_loop(factory=VirtualLoop)


async def test_a_node_gets_work_while_nothing_holds_it_and_listeners_hear_of_the_change_only() -> None:
    fleet = fleet_of(1)
    heard, node = Heard(fleet), fleet.nodes[0]
    fleet.hold(node, Hold.CHECKS, "no answer")
    fleet.hold(node, Hold.BUSY, "busy")
    assert (node.health, node.reason) == (Health.DOWN, "no answer")
    fleet.release(node, Hold.CHECKS)
    assert not fleet.gets_work(node)
    assert (node.health, node.reason) == (Health.UP, "busy")
    fleet.release(node, Hold.BUSY)
    fleet.release(node, Hold.BUSY)
    assert fleet.gets_work(node)
    assert [event for event, _ in heard.events if event == "switch"] == ["switch"] * 2


async def test_a_hold_for_a_time_ends_by_itself() -> None:
    fleet = fleet_of(1)
    fleet.hold(fleet.nodes[0], Hold.BUSY, "busy", for_s=5)
    fleet.hold(fleet.nodes[0], Hold.BUSY, "busy", for_s=2)
    await asyncio.sleep(1.9)
    assert not fleet.gets_work(fleet.nodes[0])
    await asyncio.sleep(0.2)
    assert fleet.gets_work(fleet.nodes[0])


async def test_after_a_fault_a_node_is_on_trial_and_then_warms_up() -> None:
    fleet = fleet_of(
        1, FleetOptions(slow_start=SlowStartOptions(slow_start_s=10, trial_s=5)), max_requests=20
    )
    node, loop = fleet.nodes[0], asyncio.get_running_loop()
    assert fleet.allowed_requests(node, loop.time()) == 20
    fleet.hold(node, Hold.BREAKER, "cannot be connected", for_s=1)
    await asyncio.sleep(1.1)
    assert fleet.gets_work(node)
    assert fleet.allowed_requests(node, loop.time()) == 1
    fleet.end_trial(node)
    allowed = []
    for _ in range(5):
        allowed.append(fleet.allowed_requests(node, loop.time()))
        await asyncio.sleep(2.5)
    assert allowed == [2, 5, 10, 15, 20]


async def test_a_trial_that_nothing_came_for_ends_by_itself() -> None:
    fleet = fleet_of(
        1, FleetOptions(slow_start=SlowStartOptions(slow_start_s=10, trial_s=5)), max_requests=20
    )
    heard, node, loop = Heard(fleet), fleet.nodes[0], asyncio.get_running_loop()
    fleet.hold(node, Hold.OUTLIER, "bad")
    fleet.release(node, Hold.OUTLIER)
    await asyncio.sleep(4.9)
    assert fleet.allowed_requests(node, loop.time()) == 1
    await asyncio.sleep(20)
    assert fleet.ramp_frac(node, loop.time()) == 1.0
    assert heard.events.count(("capacity", "n0")) >= 10  # told of each step


async def test_a_removed_node_finishes_its_work_first() -> None:
    fleet = fleet_of(2)
    heard, node = Heard(fleet), fleet.nodes[0]
    node.in_flight = 1
    fleet.remove("n0")
    assert node.health is Health.DRAINING
    await asyncio.sleep(20)
    assert ("removed", "n0") not in heard.events
    node.in_flight = 0
    await asyncio.sleep(0.1)
    assert heard.events[-1] == ("removed", "n0")
    assert fleet.find("n0") is None
    assert [each.idx for each in fleet.nodes] == [0, 1]
    assert fleet.present() == [fleet.nodes[1]]


async def test_a_removed_node_that_is_never_idle_is_gone_when_its_time_is_up() -> None:
    fleet = fleet_of(1)
    heard = Heard(fleet)
    fleet.nodes[0].in_flight = 1
    fleet.remove("n0", drain_s=7)
    await asyncio.sleep(6.9)
    assert ("removed", "n0") not in heard.events
    await asyncio.sleep(0.2)
    assert ("removed", "n0") in heard.events


async def test_a_node_that_comes_back_as_it_was_has_its_index_again_and_another_one_has_a_new_one() -> None:
    fleet = fleet_of(1)
    first = fleet.nodes[0]
    fleet.remove("n0")
    assert fleet.add(spec("n0")) is first
    assert fleet.gets_work(first)
    fleet.remove("n0")
    other = fleet.add(spec("n0", url="http://127.0.0.1:10"))
    assert (other.idx, fleet.find("n0")) == (1, other)


async def test_a_name_in_use_is_refused_and_so_is_an_unknown_one() -> None:
    fleet = fleet_of(1)
    with pytest.raises(ConfigError, match="name of another node"):
        fleet.add(spec("n0"))
    with pytest.raises(ConfigError, match="is no node"):
        fleet.drain("n7")
    fleet.drain("n0")
    with pytest.raises(ConfigError, match="name of another node"):
        fleet.add(spec("n0"))
    fleet.undrain("n0")
    assert fleet.gets_work(fleet.nodes[0])


async def test_a_key_comes_from_the_environment_and_is_shown_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    fleet = Fleet(asyncio.get_running_loop(), environment={"KEY": "s3cret-key\n", "BAD": "a\r\nX: y"})
    node = fleet.add(spec(api_key_env="KEY"))
    assert node.authorization == b"Bearer s3cret-key"
    fleet.hold(node, Hold.CHECKS, "no answer")
    shown = repr(node) + repr(fleet.state(node)) + caplog.text
    assert "s3cret" not in shown
    with pytest.raises(ConfigError, match="is not set"):
        fleet.add(spec("b", api_key_env="MISSING"))
    with pytest.raises(ConfigError, match="printable ASCII") as refused:
        fleet.add(spec("c", api_key_env="BAD"))
    assert "X: y" not in str(refused.value)


async def test_certificates_that_cannot_be_read_are_an_error_that_names_the_file() -> None:
    fleet = Fleet(asyncio.get_running_loop())
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        fleet.add(spec(url="https://localhost", ca_file="nowhere.pem"))
    with pytest.raises(ConfigError, match="https URL"):
        fleet.add(spec(url="http://localhost", ca_file="nowhere.pem"))
    assert fleet.add(spec(url="https://localhost")).ssl is not None
    assert fleet.nodes[0].port == 443


async def test_declared_models_stay_and_adapters_for_them_are_added() -> None:
    fleet = fleet_of(1, models=("big",), adapters=("mine",))
    heard, node = Heard(fleet), fleet.nodes[0]
    fleet.set_listing(node, Listing(("big", "small"), {"law": "big", "verse": "small"}))
    assert node.models == ("big",)
    assert fleet.state(node).adapters == {"mine": "big", "law": "big"}, "of the only model"
    fleet.set_listing(node, Listing(("big", "small"), {"law": "big", "verse": "small"}))
    assert heard.events == [("models", "n0"), ("adapters", "n0")]
    assert fleet.state(node).held_adapters == {"law"}, "`mine` it may have to load"


async def test_what_was_wrong_with_a_node_goes_with_it() -> None:
    fleet = fleet_of(2)
    fleet.report("node n0", "no answer")
    fleet.report("models of n0", "it lists no models")
    fleet.report("node n1", "no answer")
    fleet.remove("n0")
    assert fleet.problems == {"node n1": "no answer"}


async def test_a_dead_node_is_not_logged_as_up_between_its_trials(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fleet = fleet_of(1)
    node = fleet.nodes[0]
    for _ in range(5):  # it refuses, the back-off ends, the trial fails
        fleet.hold(node, Hold.BREAKER, "refuses connections", for_s=1)
        await asyncio.sleep(1.1)
    assert [record.getMessage() for record in caplog.records] == ["node n0: down (refuses connections)"]
    fleet.checked(node, "refuses connections")
    await asyncio.sleep(60.0)  # nothing came: the trial ends by itself
    assert not any(record.getMessage() == "node n0: up" for record in caplog.records)
    fleet.checked(node, "")
    assert [record.getMessage() for record in caplog.records[-1:]] == ["node n0: up"]
