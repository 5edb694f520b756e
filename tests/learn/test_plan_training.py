"""Training of networks that make plans: torch and compiled agree, oracles are reached, resume, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trimtab.errors import UsageError
from trimtab.learn.demonstrations import demonstrated
from trimtab.learn.drawn_workloads import Objective, Workloads
from trimtab.learn.methods.exchangeable_network import ExchangeableNetwork
from trimtab.learn.methods.pointer_network import RecurrentPointer
from trimtab.learn.methods.transformer_pointer import TransformerPointer
from trimtab.learn.plan_training import plan_training
from trimtab.learn.small_schedules import copied, drawn_window, optimal_schedule, total_s
from trimtab.learn.weight_search import METHODS, Method, Setting
from trimtab.policies.learned.learned_matching import LearnedMatching
from trimtab.policies.shared.plan_features import N_PLAN_FEATURES, Window, follow, note_pairs
from trimtab.policies.shared.plan_networks import (
    PointerNetwork,
    SetNetwork,
    TransformerNetwork,
    network_artifact,
    sequence,
    set_scores,
)

SEQUENCES = {RecurrentPointer: PointerNetwork, TransformerPointer: TransformerNetwork}
each = pytest.mark.parametrize("network", SEQUENCES)
SMALL = Workloads(requests=30, nodes=(8,))


def features(w: Window) -> Any:
    x = np.zeros((*w.service_s.shape, N_PLAN_FEATURES))
    note_pairs(w, x)
    return torch.from_numpy(x)


def steps_of(w: Window, requests: Any, slots: Any) -> np.ndarray:
    x = np.zeros((len(requests), *w.service_s.shape, N_PLAN_FEATURES))
    follow(copied(w), requests, slots, x)
    return x


def test_torch_scores_pairs_as_the_compiled_network() -> None:
    net, w = ExchangeableNetwork(6, 1), drawn_window(np.random.default_rng(0), 5, 4)
    with torch.no_grad():
        scores, left_out = net(features(w))
    found = set_scores(SetNetwork(**net.arrays()), w)
    np.testing.assert_allclose(scores.numpy(), found[0], atol=1e-12)
    np.testing.assert_allclose(left_out.numpy(), found[1], atol=1e-12)


@each
def test_torch_points_where_the_compiled_network_points(network: Any) -> None:
    for seed in range(4):
        net, w = network(6, seed), drawn_window(np.random.default_rng(seed), 5, 3)
        requests, slots = sequence(SEQUENCES[network](**net.arrays()), copied(w))
        x, given = steps_of(w, requests, slots), (requests[None], slots[None])
        with torch.no_grad():
            scores = net(torch.from_numpy(x[None]), *map(torch.from_numpy, given))[0].numpy()
        is_open = np.ones(5, np.bool_)
        for step, (i, j) in enumerate(zip(requests.tolist(), slots.tolist(), strict=True)):
            best = np.where(is_open[:, None], scores[step], -np.inf)
            assert best.max() - scores[step, i, j] < 1e-9
            is_open[i] = False


def test_a_known_rule_is_imitated_exactly() -> None:
    """The rule: each request takes the slot where it completes first, on instances not trained on."""
    draw, net = np.random.default_rng(0), ExchangeableNetwork(8, 0)

    def drawn() -> tuple[Any, Any]:
        w = drawn_window(draw, 2, 3)
        ends_s = np.sort(w.free_s + w.load_s + w.service_s, axis=1)
        if (ends_s[:, 1] < 1.3 * ends_s[:, 0]).any():  # too near to call
            return drawn()
        return features(w), torch.from_numpy((w.free_s + w.load_s + w.service_s).argmin(axis=1))

    can = torch.ones((2, 3), dtype=torch.bool)
    for left in np.linspace(1.0, 0.1, 100):
        net.descend(sum(net.loss(x, can, slot) for x, slot in (drawn() for _ in range(6))) / 6, float(left))
    for x, slot in (drawn() for _ in range(30)):
        scores, left_out = net(x)
        assert scores.argmax(dim=1).equal(slot)
        assert (scores.max(dim=1).values > left_out).all()


@each
def test_the_optimum_of_three_requests_on_three_slots_is_reached(network: Any) -> None:
    draw, net = np.random.default_rng(1), network(8, 0)
    instances = [drawn_window(draw, 3, 3) for _ in range(6)]
    optima = [optimal_schedule(w) for w in instances]
    x = np.array([steps_of(w, best.requests, best.slots) for w, best in zip(instances, optima, strict=True)])
    picked = np.array([best.requests for best in optima]), np.array([best.slots for best in optima])
    given = [torch.from_numpy(array) for array in (x, *picked, np.ones((6, 3, 3), np.bool_))]
    for left in np.linspace(1.0, 0.1, 150):
        net.descend(net.loss(*given), float(left))
    made = [total_s(w, *sequence(SEQUENCES[network](**net.arrays()), copied(w))) for w in instances]
    assert made == pytest.approx([best.total_s for best in optima])


def training(method: Method, **other: Any) -> Any:
    given = {"policy": METHODS[method].policies[0], "objective": Objective.parsed("mean"), **other}
    workloads = SMALL if method.startswith("imitate") else Workloads()
    made = plan_training(method)
    return made(Setting(**{"workloads": workloads, "generations": 2, "hidden": 2, "method": method, **given}))


@pytest.mark.parametrize("method", ["imitate-schedules", "rnn", "transformer"])
def test_an_interruption_changes_nothing(method: Method) -> None:
    whole, begun, rest = (training(method) for _ in range(3))
    while not whole.is_over:
        whole.step()
    begun.step()
    rest.restore(begun.checkpoint(), "c.npz")
    rest.step()
    assert rest.history == whole.history
    assert rest.artifact("w") == whole.artifact("w")
    assert rest.artifact("w").meta["policy"] == METHODS[method].policies[0]


def test_a_teacher_that_acts_is_followed_and_shows_what_it_does() -> None:
    student = LearnedMatching(artifact=network_artifact("s", ExchangeableNetwork(2, 0).arrays(), {}))
    followed = demonstrated(SMALL, 0, student, "plans", True)
    left = demonstrated(SMALL, 0, student, "plans", False)
    assert followed.figures != left.figures
    for shown in (*followed.demonstrations, *left.demonstrations):
        taken = shown.slot[shown.slot >= 0]
        assert len(set(taken.tolist())) == len(taken) == min(shown.seen.service_s.shape)


def test_what_the_methods_do_not_train_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--policy: is not trained so .*learned-pointer with --method rnn"):
        training("rnn", policy="learned-residual")
    with pytest.raises(UsageError, match=r"--objective: is not what examples show"):
        training("imitate-plans", objective=Objective.parsed("mean+p99"))
    with pytest.raises(UsageError, match=r"--hidden: has no two halves .*2, 4, 6"):
        training("transformer", hidden=3)
