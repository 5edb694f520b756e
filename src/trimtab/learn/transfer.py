"""Weights trained on one kind of workload, for another: as they are, trained on, or trained anew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Final, Literal

from trimtab.domain.artifact import NO_ARTIFACT, Artifact
from trimtab.errors import UsageError
from trimtab.learn.augmentation import Augmentation
from trimtab.learn.drawn_workloads import Objective, Workloads
from trimtab.learn.similarity import Similarity
from trimtab.learn.weight_search import METHODS, RULES, Setting, Training, WeightSearch
from trimtab.policies.shared.learned_score import check_weights, hidden_of, vector_of

Way = Literal["as-is", "fine-tuned", "anew"]
WAYS: Final[tuple[Way, ...]] = ("as-is", "fine-tuned", "anew")
AS_IS_BELOW: Final = 0.0  # total of a similarity; both are fitted by `python -m bench.transfer`
ANEW_FROM: Final = 0.54
GENERATIONS: Final = 20  # of samples, where none are given
TRANSFER_KEY: Final = "transfer"  # of an artifact's metadata
TRANSFERRED: Final = ("es", "a2c", "ppo", "dqn")  # methods that go on from weights
_NUMBERS: Final = (
    "pairs",
    "sigma",
    "rate",
    "decisions",
)  # of a training, which a transfer keeps


def way_of(total: float, as_is_below: float = AS_IS_BELOW, anew_from: float = ANEW_FROM) -> Way:
    """What to do with weights whose training was so far away from the target."""
    if total < as_is_below:
        return "as-is"
    return "fine-tuned" if total < anew_from else "anew"


def setting_of(
    weights: Artifact,
    target: Workloads,
    augmentation: Augmentation,
    way: Way,
    *,
    samples: int | None = None,
    seed: int = 0,
) -> Setting:
    """The training on the target, by the method, objective and numbers that the weights were trained with.

    Args:
        weights: of `trimtab learn train`.
        target: what they are to serve.
        augmentation: how the workloads of the training differ from it.
        way: "anew" starts at weights that change nothing, the others at these.
        samples: of the target: simulated runs by es, decisions by other methods; None = `GENERATIONS`.
        seed: of the training.

    Raises UsageError for weights of another version, or that do not tell how they were trained, for samples
    that make no step, and for requests resampled by a method that does not see them.
    """
    told = _told(weights)
    check_weights(weights, told["policy"], told["policy"])
    setting = Setting(
        told["policy"],
        Objective.parsed(told["objective"]),
        replace(target, augmentation=augmentation),
        GENERATIONS,
        hidden=hidden_of(len(vector_of(weights))),
        seed=seed,
        method=told["method"],
        start=NO_ARTIFACT if way == "anew" else weights,
        **{key: told[key] for key in _NUMBERS if key in told},
    )
    if augmentation.resample and setting.method != "es":
        expected = f"rates and speeds with weights by {setting.method}, whose environment draws its requests"
        raise UsageError("is not done", field="--augment", value="resample", expected=expected)
    if samples is None:
        return setting
    if samples < setting.samples_each:
        unit = "simulated runs" if setting.method == "es" else "decisions"
        expected = f"at least {setting.samples_each:,} {unit}, one generation of {setting.method}"
        raise UsageError("too few", field="--samples", value=samples, expected=expected)
    return replace(setting, generations=samples // setting.samples_each)


def trained_by(setting: Setting, pool: Executor | None = None) -> Training:
    """The training of a setting, by its method."""
    if setting.method == "es":
        return WeightSearch(setting, pool)
    if METHODS[setting.method].is_of_plans:
        from trimtab.learn.plan_training import plan_training

        return plan_training(setting.method)(setting, pool)
    from trimtab.learn.dispatch_training import DispatchTraining

    return DispatchTraining(setting, pool)


def with_provenance(made: Artifact, source: Artifact, way: Way, found: Similarity) -> Artifact:
    """The weights of a transfer, which tell what they come from."""
    told = {
        "source": source.name,
        "source_sha256": source.sha256,
        "way": way,
        **found.to_dict(),
    }
    return Artifact(made.name, made.arrays, {**made.meta, TRANSFER_KEY: json.dumps(told)})


def _told(weights: Artifact) -> Mapping[str, Any]:
    """How weights were trained. Raises UsageError."""
    file = weights.path or weights.name
    try:
        told = json.loads(weights.meta["training"])
        method, policy, _ = told["method"], told["policy"], told["objective"]
    except (KeyError, TypeError, ValueError) as error:
        expected = "weights of `trimtab learn train`"
        raise UsageError("do not tell it", file=file, field="training", expected=expected) from error
    if method not in TRANSFERRED:
        expected = f"weights by one of {', '.join(TRANSFERRED)}"
        raise UsageError(
            "does not go on from weights",
            file=file,
            field="method",
            value=method,
            expected=expected,
        )
    if policy not in RULES:
        expected = f"weights of one of {', '.join(RULES)}"
        raise UsageError(
            "takes no such weights",
            file=file,
            field="policy",
            value=policy,
            expected=expected,
        )
    return dict(told)
