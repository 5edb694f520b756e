"""The server's side: who is asked, whose answer counts, when a round ends, and going on from a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from trimtab.domain.artifact import Artifact
from trimtab.errors import UsageError
from trimtab.learn.federated.aggregation import Rule, Update
from trimtab.learn.federated.rounds import Federation, Terms, learned_together, update_content

SITES = ("a", "b", "c", "d")


class Numbers:
    """A problem of three numbers: their sum over the rounds."""

    def told(self) -> dict[str, Any]:
        return {"kind": "numbers"}

    def rounds(self) -> int:
        return 5

    def width(self, history: Sequence[Update]) -> int:
        return 3

    def ask(self, history: Sequence[Update]) -> Artifact:
        return Artifact("ask", {"sum": self.total(history)})

    def total(self, history: Sequence[Update]) -> np.ndarray:
        return np.sum([np.zeros(3), *(update.values for update in history)], axis=0)

    def result(self, history: Sequence[Update], provenance: Mapping[str, Any]) -> tuple[str, bytes]:
        return "sum", self.total(history).tobytes()


class Towards:
    """A site that pulls halfway to its number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def answer(self, ask: Artifact) -> Update:
        return Update((self.number - ask.floats("sum", (3,))) / 2.0, np.ones(3))


def federation(**terms: Any) -> Federation:
    return Federation(Numbers(), Terms(SITES, **terms))


def content(value: float, identity: str, width: int = 3) -> bytes:
    return update_content(Update(np.full(width, value), np.ones(width)), identity)


def answer(made: Federation, *sites: str, value: float = 1.0) -> None:
    for site in sites:
        assert made.take(site, made.number, content(value, made.identity)) == ""


def test_sites_meet_in_the_middle() -> None:
    sites = {name: Towards(float(k)) for k, name in enumerate(SITES)}
    done = learned_together(federation(), sites)
    expected = 1.5 * (1.0 - 0.5**5)
    np.testing.assert_allclose(np.frombuffer(done.result()[1]), expected)


def test_a_share_of_the_sites_is_drawn_for_each_round_and_all_in_time() -> None:
    made, seen = federation(share_frac=0.5), set()
    while not made.is_over:
        drawn = made.drawn()
        assert len(drawn) == 2
        seen |= set(drawn)
        stranger = next(site for site in SITES if site not in drawn)
        assert "was not drawn" in made.take(stranger, made.number, content(1.0, made.identity))
        answer(made, *drawn)
        made.end_round()
    assert len(seen) > 2


def test_a_straggler_is_dropped_and_waited_for_again_once_it_returns() -> None:
    made = federation(sites_min=2)
    answer(made, "a", "b", "c")
    assert made.waited_for() == ("d",)
    assert made.end_round().missed == ("d",)
    assert "has ended" in made.take("d", 1, content(9.0, made.identity))
    answer(made, "a", "b", "c")
    assert made.waited_for() == ("d",), "it was heard of: it is there"
    made.end_round()
    answer(made, "a", "b", "c")
    assert made.waited_for() == (), "it left"
    made.heard("d")
    assert made.waited_for() == ("d",), "it returned"
    answer(made, "d")
    assert made.end_round().missed == ()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (lambda made: content(1.0, made.identity)[:40], "no safetensors file"),
        (lambda made: content(1.0, made.identity, width=4), "wrong shape"),
        (lambda made: content(1.0, "another"), "another schema or version"),
        (lambda made: update_content(Update(np.ones(3), -np.ones(3)), made.identity), "below 0"),
        (lambda made: b"\x00" * 100, "JSON|safetensors"),
        (
            lambda made: content(1.5, made.identity).replace(
                np.float64(1.5).tobytes(), np.float64("nan").tobytes()
            ),
            "not finite",
        ),
    ],
)
def test_garbage_is_refused_by_the_name_of_its_site_and_the_others_go_on(sent: Any, said: str) -> None:
    made = federation()
    why = made.take("b", 1, sent(made))
    assert "update of b" in why
    assert re.search(said, why)
    answer(made, "a", "c", "d")
    assert made.waited_for() == ()
    report = made.end_round()
    assert (report.answered, report.refused.keys()) == (("a", "c", "d"), {"b"})


def test_a_site_answers_once() -> None:
    made = federation()
    answer(made, "a")
    assert "already" in made.take("a", 1, content(5.0, made.identity))


def test_a_server_that_ended_in_the_middle_of_a_round_comes_to_the_same() -> None:
    whole, broken = federation(rule=Rule("median")), federation(rule=Rule("median"))
    for made in (whole, broken):
        answer(made, "a", "b", "c", "d", value=0.25)
        made.end_round()
        answer(made, "a", "c", value=3.0)
        made.take("d", 2, b"garbage")
    again = federation(rule=Rule("median"))
    again.restore(broken.checkpoint(), "file")
    for made in (whole, again):
        answer(made, "b", value=-2.0)
        made.end_round()
        while not made.is_over:
            answer(made, "a", value=0.5)
            made.end_round()
    assert again.result() == whole.result()
    assert again.reports == whole.reports


def test_a_checkpoint_of_another_federation_is_refused() -> None:
    with pytest.raises(UsageError, match="another federation"):
        federation(seed=1).restore(federation().checkpoint(), "federation.safetensors")


def test_too_few_answers_are_told() -> None:
    with pytest.raises(UsageError, match="too few answers"):
        learned_together(federation(sites_min=3), {"a": Towards(1.0)})
