"""The helper for PyTorch: ranks that change train as one rank does; the noise is that of the gradients."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.train_runs import BY_PROGRESS, train
from trimtab.training.gradient_norms import NoiseScale

SCRIPT = Path(__file__).parents[2] / "support" / "gated_digits.py"
SAMPLES = 3200


def digits(id: str, losses: Path, gates: str, **more: Any) -> dict[str, Any]:
    words = [sys.executable, str(SCRIPT), gates, "--lr", "0.004", "--losses", str(losses)]
    return {"id": id, "command": words, "samples": SAMPLES, "batch": 64, "preload": ["torch"]} | more


def losses(file: Path) -> dict[int, float]:
    """Step → loss of the step before; the first step of a process knows none."""
    rows = np.loadtxt(file)
    return {int(step): loss for step, loss in rows[~np.isnan(rows[:, 1])]}


def test_one_two_one_ranks_have_the_loss_of_one(tmp_path: Path) -> None:
    """The same samples in each step: the losses differ by rounding only."""
    pytest.importorskip("torch", reason="needs torch")
    jobs = [
        digits("changed", tmp_path / "changed", "16:2/32:1", gpus=1, gpus_max=2),
        digits("plain", tmp_path / "plain", "0:1", gpus=1, gpus_max=1),
    ]
    run = train(tmp_path / "runs", f"{BY_PROGRESS}(script=0:1/0.3:2/0.6:1)", *jobs, grace_s=60)
    assert run.state == "done"
    assert [job.restarts for job in run.recording.jobs] == [2, 0]
    curves = [losses(tmp_path / name) for name in ("changed", "plain")]
    assert list(curves[1]) == list(range(1, SAMPLES // 64))  # step 0 has no loss before it
    common = sorted(curves[0].keys() & curves[1].keys())
    assert len(common) > 0.9 * len(curves[1])
    first, second = (np.array([curve[step] for step in common]) for curve in curves)
    np.testing.assert_allclose(first, second, rtol=0.02)
    assert second[-1] < 0.6 * second[0]


def test_noise_is_that_of_the_samples_gradients(rng: np.random.Generator) -> None:
    """Gradients of samples: mean with squared norm 4, variance 9 in sum. Four parts of 8 samples each."""
    noise = NoiseScale(keep=0.999)
    told = {}
    for _ in range(4000):
        gradients = 2.0 * np.eye(9)[0] + rng.normal(size=(32, 9))
        parts = gradients.reshape(4, 8, 9).mean(axis=1)
        small_sqr, big_sqr = (parts**2).sum(axis=1).mean(), (gradients.mean(axis=0) ** 2).sum()
        told = noise.seen(float(small_sqr), 8, float(big_sqr), 32)
    assert told["grad_sqr"] == pytest.approx(4.0, rel=0.02)
    assert told["grad_var"] == pytest.approx(9.0 / 32, rel=0.05)


def test_the_learning_rate_follows_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of plain gradient descent is as long as the rate times the factor; the rate itself stays."""
    torch = pytest.importorskip("torch", reason="needs torch")
    from trimtab.training.torch import ElasticTraining

    monkeypatch.setenv("TRIMTAB_LEARNING_RATE_FACTOR", "3")
    monkeypatch.setenv("TRIMTAB_ACCUMULATION", "3")
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.ones(8, 1))
    training, parts = ElasticTraining(model, optimizer, data, samples=16, batch=8), []
    for inputs, *_ in training:
        if training.job.step == 1:
            break
        parts.append(len(inputs))
        training.step(model(inputs).mean())
    assert parts == [2, 2, 2, 2]
    assert model.weight.item() == pytest.approx(-0.3)
    assert optimizer.param_groups[0]["lr"] == 0.1
