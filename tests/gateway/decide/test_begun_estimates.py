"""What other sites learned is what a gateway's estimates begin with, and what the simulator's do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trimtab.domain.cluster import RESOURCES
from trimtab.domain.learned_estimates import KNOTS, LearnedEstimates
from trimtab.errors import ConfigError
from trimtab.experiments.scenario.build.generated import RequestColumns
from trimtab.experiments.scenario.build.request_arrays import output_error
from trimtab.experiments.scenario.spec.workload import LearnedSpec, WorkloadSpec
from trimtab.gateway.config import parse_config
from trimtab.gateway.decide.learning import ENOUGH, ServiceEstimates
from trimtab.gateway.model import Kind

KEY = ("small", Kind.CHAT)


def learned() -> LearnedEstimates:
    """Every chat answer has 77 tokens; on an h100 it takes 2 s and .01 a unit."""
    return LearnedEstimates(
        ("chat",),
        ("h100",),
        lengths=np.full((1, KNOTS), 77.0),
        service=np.array([[[2.0, 0.01]]]),
        demand=np.full((1, len(RESOURCES)), 0.25),
        rows={
            "lengths": np.ones((1, KNOTS)),
            "service": np.ones((1, 1)),
            "demand": np.ones((1, len(RESOURCES))),
        },
        provenance={"sites": ["a"]},
    )


def test_a_type_begins_with_what_others_learned_and_goes_over_to_its_own() -> None:
    estimates, without = ServiceEstimates(learned()), ServiceEstimates()
    assert estimates.of(KEY, "h100") == (2.0, 0.01)
    assert estimates.of(KEY, "l4") == without.of(KEY, "l4"), "nobody knows it"
    for units in (10.0, 20.0, 30.0, 40.0)[: int(ENOUGH)]:
        changed = estimates.observe(KEY, "h100", units, 5.0 + 0.1 * units)
    assert changed is not None
    assert estimates.of(KEY, "h100") == pytest.approx((5.0, 0.1))


def test_a_class_begins_with_the_curve_of_its_kind() -> None:
    estimates = ServiceEstimates(learned())
    assert estimates.new_class(KEY, 0).output.predict(500) == pytest.approx(77.0)
    assert estimates.new_class(("small", Kind.EMBEDDING), 1).output.learned is None


def test_gateway_yaml_takes_the_file_and_refuses_another(tmp_path: Path) -> None:
    (tmp_path / "learned.safetensors").write_bytes(learned().artifact("learned").content())
    text = "nodes: []\nlearned: learned.safetensors\n"
    assert parse_config(text, folder=tmp_path).learned == tmp_path / "learned.safetensors"
    (tmp_path / "learned.safetensors").write_bytes(b"something else")
    with pytest.raises(ConfigError, match=r"learned: .*trimtab federate.*safetensors"):
        parse_config(text, folder=tmp_path)


def test_the_simulator_begins_with_the_same(tmp_path: Path) -> None:
    file = tmp_path / "learned.safetensors"
    file.write_bytes(learned().artifact("learned").content())
    spec = WorkloadSpec.model_construct(
        estimate_cv=0.0, output_estimate="online-mean", learned=LearnedSpec(file=file)
    )
    n, rng = 300, np.random.default_rng(1)
    output, prompt = rng.integers(1, 500, n), rng.integers(1, 8_000, n)
    columns = RequestColumns(
        np.arange(n, dtype=float),
        class_idx=np.arange(n) % 2,
        units=output.astype(float),
        model=np.full(n, -1),
        adapter=np.full(n, -1),
        models={},
        adapters={},
        prompt_tokens=prompt,
        output_tokens=output,
    )
    expected = output_error(spec, columns, 0, ("chat", "code")) * output
    assert expected[0] == pytest.approx(77.0)
    classes = [
        ServiceEstimates(learned()).new_class(("m", kind), k)
        for k, kind in enumerate((Kind.CHAT, Kind.RELAY))
    ]
    for k in range(n):
        of = classes[k % 2].output
        assert expected[k] == pytest.approx(of.predict(float(prompt[k])))
        of.observe(float(prompt[k]), 0.0, float(output[k]))
