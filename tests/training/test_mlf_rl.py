"""MLF-RL by hand: turns, masks, weights that are the heuristic, and weights that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.training_runs import LEVELS, jobs_of, run_of
from trimtab.domain.artifact import Artifact
from trimtab.errors import UsageError
from trimtab.training.allocators.mlf_rl import ACTIONS, FEATURES, HEADS, HIDDEN, VERSION, MlfRl, take_turns

KEEP, LESS, MORE, ADMIT, PREEMPT = range(5)


def weights(actions: str = "mlfs-style", **biases: float) -> Artifact:
    """Weights that value each action the same in every state."""
    skip = np.zeros((HEADS, len(FEATURES)))
    for name, value in biases.items():
        skip[ACTIONS.index(name.replace("_", " ")), 0] = value
    arrays = {
        "trunk": np.zeros((HIDDEN, len(FEATURES))),
        "bias": np.zeros(HIDDEN),
        "out": np.zeros((HEADS, HIDDEN)),
        "skip": skip,
    }
    return Artifact("made", arrays, {"features": VERSION, "actions": actions})


def run(allocator: Any) -> Any:
    return run_of(jobs_of([0, 0, 30, 60, 500], [300, 900, 60, 100, 50], [4, 4, 2, 8, 1]), allocator)


@pytest.mark.parametrize("actions", ["mlfs-style", "paper"])
def test_without_weights_and_with_the_heuristic_s_it_is_mlfs(actions: str) -> None:
    heuristic = run("mlfs")
    assert run(MlfRl(actions=actions)).finish_s.tolist() == heuristic.finish_s.tolist()
    same = MlfRl(actions=actions, artifact=weights(actions, keep=1.0, admit=2.0, preempt=-1.0))
    assert run(same).finish_s.tolist() == heuristic.finish_s.tolist()


def test_levels_change_only_where_actions_allow_it() -> None:
    more = {"one_level_more": 3.0, "admit": 2.0, "keep": 1.0}
    assert (
        run(MlfRl(actions="paper", artifact=weights("paper", **more))).finish_s.tolist()
        == run("mlfs").finish_s.tolist()
    )
    elastic = run(MlfRl(artifact=weights(**more)))
    assert elastic.finish_s.tolist() != run("mlfs").finish_s.tolist()
    assert elastic.finished.all()


def turns(held: list[int], free_gpus: int, **biases: float) -> Any:
    """Jobs in their order, all of which asked for two GPUs (place 1) and may have one to eight."""
    n = len(held)
    row = MlfRl(artifact=weights(**biases))
    columns = np.arange(n), LEVELS, np.array(held), np.full(n, 1), np.zeros(n, np.int64), np.full(n, 3)
    speed = np.tile(np.array([1.0, 1.8, 3.0, 4.0]), (n, 1))
    seen = np.zeros((n, len(FEATURES)))
    seen[:, 0] = 1.0
    return take_turns(*columns, np.ones(n, np.bool_), seen, speed, np.zeros((n, 5)), row.weights(), free_gpus)


def test_turns_share_what_is_left() -> None:
    gpus, seen, allowed, done = turns([1, -1, 1], 4, keep=1.0, admit=2.0)
    assert (gpus.tolist(), done.tolist()) == ([2, 2, 0], [KEEP, ADMIT, PREEMPT])
    assert allowed[1].tolist() == [True, False, False, True, False]
    assert not allowed[2, KEEP]
    assert seen[:, FEATURES.index("GPUs left")].tolist() == [1.0, 0.5, 0.0]
    assert seen[0, FEATURES.index("gain of a level more")] == pytest.approx(3.0 / 1.8 - 1)
    assert seen[0, FEATURES.index("held behind it")] == 0.5
    assert seen[0, FEATURES.index("wanted behind it")] == pytest.approx(2 / 6)


def test_a_level_more_needs_room_and_a_level_less_a_level() -> None:
    gpus, _, allowed, _ = turns([1, 0, 3], 8, one_level_more=1.0)
    assert gpus.tolist() == [4, 2, 0]
    assert not allowed[1, LESS]
    gpus, *_ = turns([1, 0], 8, one_level_less=1.0)
    assert gpus.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"meta": {"features": "0", "actions": "mlfs-style"}}, "features 0, actions mlfs-style"),
        ({"meta": {"features": VERSION, "actions": "paper"}}, "expected features 1, actions mlfs-style"),
        ({"bias": np.zeros(3)}, "has the wrong shape"),
    ],
)
def test_weights_that_do_not_fit_are_refused(change: dict[str, Any], told: str) -> None:
    good = weights()
    meta = change.pop("meta", dict(good.meta))
    with pytest.raises(UsageError, match=told):
        MlfRl(artifact=Artifact("bad", dict(good.arrays) | change, meta))
