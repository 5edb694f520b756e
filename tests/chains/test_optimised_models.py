"""Models of a user's own in other numbers and runtimes: equal within a tolerance, measured, or refused."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from trimtab.chains import Session, chain, optimised, stage
from trimtab.chains.memo import fingerprint
from trimtab.cli.app import app
from trimtab.clusters.in_process import InProcess
from trimtab.errors import ChainError, MissingExtra
from trimtab.live.model_scope import ModelRecord, models_of

torch = pytest.importorskip("torch", reason="the extra `models` is not installed")
pytest.importorskip("onnxruntime", reason="the extra `models` is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Two(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Two outputs in a table, of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 64), torch.nn.Linear(64, 4)

    def forward(self, x: Any, y: Any) -> dict[str, Any]:
        hidden = torch.relu(self.first(x) + y)
        return {"scores": self.second(hidden), "hidden": hidden}


def two() -> Any:
    torch.manual_seed(1)
    return Two()


def convolutions() -> Any:
    torch.manual_seed(2)
    first = torch.nn.Conv2d(3, 8, 3, padding=1)
    return torch.nn.Sequential(first, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(2048, 5))


def rows(n: int) -> tuple[Any, Any]:
    torch.manual_seed(3)
    return torch.randn(n, 16), torch.randn(n, 64)


def error(found: Any, right: Any) -> float:
    """‖a - b‖ / ‖b‖ over all outputs, by its definition."""
    off = sum(float(((found[k] - right[k]).double() ** 2).sum()) for k in right)
    return math.sqrt(off / sum(float((right[k].double() ** 2).sum()) for k in right))


@pytest.mark.parametrize(
    ("given", "smaller"),
    [
        ({"numbers": "half"}, 0.9),
        ({"numbers": "int8"}, 0.9),
        ({"runtime": "onnx"}, 1.1),
        ({"runtime": "onnx", "numbers": "int8"}, 0.7),
        ({"prune": 0.2, "tolerance": 0.5}, 1.1),
    ],
    ids=str,
)
def test_a_module_gives_the_same_within_the_tolerance(given: dict[str, Any], smaller: float) -> None:
    with models_of(given) as scope:  # as a stage's option
        fast = optimised(two, rows(4))
    (record,) = scope.records
    with torch.inference_mode():
        right = two()(*rows(4))
        batch = two()(*rows(9))
    found = fast(*rows(4))
    assert {name: tuple(part.shape) for name, part in found.items()} == {"scores": (4, 4), "hidden": (4, 64)}
    assert found["scores"].dtype == torch.float32
    assert record.error == pytest.approx(error(found, right), rel=1e-6, abs=1e-9)
    assert 0.0 < record.error <= record.tolerance
    assert record.file_bytes < smaller * record.plain_bytes
    assert min(record.plain_s, record.call_s) > 0.0
    assert error(fast(*rows(9)), batch) < 2.0 * record.tolerance  # another batch than the example's


def test_pruning_makes_the_smallest_weights_zero() -> None:
    fast: Any = optimised(two(), rows(4), prune=0.25, tolerance=1.0)
    weights = torch.cat(
        [layer.weight.detach().flatten() for layer in (fast.module.first, fast.module.second)]
    )
    plain = torch.cat([layer.weight.detach().flatten() for layer in (two().first, two().second)])
    wanted = round(0.25 * len(plain))
    assert int((weights == 0).sum()) == wanted
    assert float(plain[weights == 0].abs().max()) <= float(plain[weights != 0].abs().min())


def test_convolutions_are_calibrated_and_an_onnx_file_is_a_model(tmp_path: Path) -> None:
    example = torch.randn(2, 3, 16, 16)
    with models_of({"numbers": "int8", "runtime": "onnx"}) as scope:
        optimised(convolutions, example, torch.randn(2, 3, 16, 16))
    assert scope.records[0].file_bytes < 0.4 * scope.records[0].plain_bytes
    from trimtab.chains.model_runtimes import exported

    (tmp_path / "m.onnx").write_bytes(exported(convolutions(), (example,)))
    with torch.inference_mode():
        right = convolutions()(example).numpy()
    plain = optimised(tmp_path / "m.onnx", example.numpy())
    np.testing.assert_allclose(plain(example.numpy()), right, rtol=1e-4, atol=1e-5)
    fast = optimised(str(tmp_path / "m.onnx"), example.numpy(), numbers="int8", runtime="onnx", tolerance=0.2)
    assert np.linalg.norm(fast(example.numpy()) - right) < 0.2 * np.linalg.norm(right)
    with pytest.raises(ChainError, match=r"optimise\.runtime: needs a torch module \(got 'compiled'\)"):
        optimised(tmp_path / "m.onnx", example.numpy(), runtime="compiled")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"numbers": "int4"}, r"optimise\.numbers.*'int4'.*one of single, half, int8"),
        ({"number": "int8"}, r"optimise\.number: no such option"),
        ({"prune": 0.5}, r"optimise\.tolerance.*how far the outputs of a pruned model may be off"),
        ({"runtime": "onnx", "numbers": "half"}, r"optimise\.numbers.*'half'.*half with plain"),
        ({"runtime": "onnx", "device": "cuda"}, r"optimise\.device.*auto or cpu"),
        ({"prune": 1.0, "tolerance": 1.0}, r"optimise\.prune.*below 1"),
    ],
)
def test_options_that_do_not_go_are_refused_where_the_stage_is_declared(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ChainError, match=message):
        stage(optimise=given)(two)


def test_what_this_machine_cannot_and_what_differs_too_much_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ChainError, match=r"two: outputs differ by 0\.\d+ of .* \(got 0\.001\)"):
        optimised(two, rows(4), numbers="int8", tolerance=0.001)
    with pytest.raises(ChainError, match="this machine has no TensorRT"):
        optimised(two, rows(4), runtime="tensorrt")
    if not torch.cuda.is_available():
        with pytest.raises(ChainError, match="this machine has no CUDA device"):
            optimised(two, rows(4), device="cuda")
    with pytest.raises(ChainError, match="is no model"):
        optimised(lambda: 3, rows(4))

    def no_compiler(module: Any) -> Any:
        def call(*_: Any) -> None:
            raise RuntimeError("no C++ compiler")

        return call

    monkeypatch.setattr(torch, "compile", no_compiler)
    with pytest.raises(ChainError, match="this machine cannot run the model so: RuntimeError: no C"):
        optimised(two, rows(4), runtime="compiled")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match="ONNX Runtime needs onnxruntime") as refused:
        optimised(two, rows(4), runtime="onnx")
    assert "trimtab[models]" in str(refused.value)


CODE = """
import torch
from trimtab.chains import chain, optimised, stage

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2))

@stage(optimise={"numbers": "int8", "runtime": "onnx"})
class Score:
    def __init__(self):
        self.net = optimised(net, (torch.ones(1, 8),))
    def __call__(self, n: int) -> int:
        return self.net(torch.full((1, 8), float(n))).shape[1] + n

@chain
def scores(n: int):
    return Score(n)
"""


def test_the_report_of_a_run_shows_what_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "optimised_scores.py"
    file.write_text(CODE)
    (tmp_path / "in.jsonl").write_text("1\n2\n")
    journal = ["--journal", str(tmp_path / "j")]
    run = ["chain", "run", str(file), "--input", str(tmp_path / "in.jsonl"), "--workers", "1"]
    done = CliRunner().invoke(app, [*run, *journal])
    assert done.exit_code == 0, done.output
    assert "Optimised models" in done.stderr
    run_id = next(word for word in done.stderr.split() if word.startswith("run_"))
    told = CliRunner().invoke(app, ["chain", "report", run_id, *journal, "--json"])
    ((record,),) = json.loads(told.stdout)["models"].values()
    assert (record["model"], record["how"], record["tolerance"]) == ("net", "int8, onnx", 0.1)
    assert 0.0 < record["error"] <= 0.1
    assert record["file_bytes"] < record["plain_bytes"] * 2
    page = tmp_path / "run.html"
    CliRunner().invoke(app, ["chain", "report", run_id, *journal, "--out", str(page)])
    assert "int8, onnx" in page.read_text()
    shown = CliRunner().invoke(app, ["chain", "report", run_id, *journal]).stdout
    assert "Optimised models" in shown


@stage(deterministic=True)
def kept(n: int) -> int:
    return n


@chain
def keeps(n: int) -> Any:
    return kept(n)


def test_kept_results_of_a_plain_model_are_not_those_of_an_optimised_one() -> None:
    (plain,) = keeps.steps

    @chain
    def keeps_fast(n: int) -> Any:
        return kept.options(optimise={"numbers": "int8"})(n)

    (fast,) = keeps_fast.steps
    assert fingerprint(plain) != fingerprint(fast)


def test_without_a_journal_the_session_has_the_records() -> None:
    @stage(optimise={"numbers": "half"})
    def scored(n: int) -> float:
        return float(optimised(two(), rows(4), name="mine")(*rows(n))["scores"].sum())

    @chain
    def scoring(n: int) -> Any:
        return scored(n)

    with Session(scoring, on=InProcess()) as session:
        session.run(scoring, [1, 2]).values()
        (record,) = session.models["scored"]
    assert isinstance(record, ModelRecord)
    assert (record.model, record.how) == ("mine", "half, plain")
    assert math.isnan(record.memory_bytes)  # made before: not measured
