"""Expected outputs: one piece of code for the gateway and the simulator."""

from __future__ import annotations

import random

import numpy as np
import pytest

from support.trace_files import recorded
from trimtab.domain.output_estimate import FIRST_OUTPUT_TOKENS, OutputEstimate
from trimtab.experiments.scenario.build.generated import RequestColumns
from trimtab.experiments.scenario.build.request_arrays import output_error
from trimtab.experiments.scenario.spec.workload import WorkloadSpec
from trimtab.gateway.decide.learning import RequestClass, ServiceEstimates
from trimtab.gateway.model import Attempt, Exchange, Facts, Kind, Node, Usage
from trimtab.traces import read_trace

PROMPT = 100


def test_outputs_are_learned_by_their_limit() -> None:
    draw = random.Random(1)
    output = OutputEstimate()
    for _ in range(2_000):
        output.observe(PROMPT, 16, 16)
        output.observe(PROMPT, 4_096, draw.uniform(400, 600))
    assert output.predict(PROMPT, 16) == pytest.approx(16, abs=0.5)
    assert output.predict(PROMPT, 4_096) == pytest.approx(500, rel=0.1)
    assert output.predict(PROMPT, 3) == 3  # never seen: its limit
    assert output.predict(PROMPT, 20) <= 20


def test_a_changed_model_is_followed() -> None:
    output = OutputEstimate()
    for tokens in (100, 900):
        for _ in range(1_500):
            output.observe(PROMPT, 0, tokens)
    assert output.predict(PROMPT) == pytest.approx(900, rel=0.02)


def test_odd_limits_do_no_harm() -> None:
    output = OutputEstimate()
    for limit in (0, 0.3, 1, 1e7):
        output.observe(PROMPT, limit, 5)
        assert output.predict(PROMPT, limit) >= 0


def test_outputs_are_learned_by_the_length_of_the_prompt() -> None:
    output = OutputEstimate()
    for _ in range(20):
        output.observe(100, 0, 300)
        output.observe(4_200, 0, 20)
    assert output.predict(110) == 300, "the same quarter octave: 96 to 112"
    assert output.predict(4_300) == 20
    assert output.predict(120) == output.predict(1_000) == pytest.approx(160, rel=0.1), "the mean of all"
    assert output.predict(110, 50) == 50, "cut at the limit"


def _through_the_gateway(class_idx: np.ndarray, prompt: np.ndarray, output: np.ndarray) -> np.ndarray:
    """What the gateway expects of each request, where each ends before the next one comes."""
    estimates, node = ServiceEstimates(), Node("n", "http://n", 0, "n", 1, False, ("m",), 1)
    classes = [RequestClass(("m", Kind.CHAT), c) for c in range(int(class_idx.max()) + 1)]
    expected = np.empty(len(output))
    for k, (c, prompt_tokens, output_tokens) in enumerate(zip(class_idx, prompt, output, strict=True)):
        exchange, of = Exchange(), classes[c]
        exchange.facts = Facts("m", prompt_tokens=float(prompt_tokens))
        expected[k] = of.output.predict(exchange.facts.prompt_tokens, exchange.facts.max_tokens)
        exchange.usage, exchange.attempts = Usage(0, int(output_tokens)), [Attempt(node, 0.0)]
        estimates.learn(exchange, of, 0.0, is_timed=False)
    return expected


def _in_the_simulator(class_idx: np.ndarray, prompt: np.ndarray, output: np.ndarray) -> np.ndarray:
    spec = WorkloadSpec.model_construct(estimate_cv=0.0, output_estimate="online-mean")
    none, units = np.full(len(output), -1), output.astype(float)
    columns = RequestColumns(
        np.arange(len(output), dtype=float),
        class_idx=class_idx,
        units=units,
        model=none,
        adapter=none,
        models={},
        adapters={},
        prompt_tokens=prompt,
        output_tokens=output,
    )
    error: np.ndarray = output_error(spec, columns, 0)
    return error * output


def test_the_gateway_expects_what_the_simulator_does() -> None:
    rng = np.random.default_rng(1)
    class_idx, prompt = rng.integers(0, 3, 2_000), rng.integers(1, 8_000, 2_000)
    output = 1 + rng.poisson(50 + 2_000 / prompt)
    expected = _in_the_simulator(class_idx, prompt, output)
    np.testing.assert_allclose(expected, _through_the_gateway(class_idx, prompt, output), rtol=1e-12)
    assert expected[0] == FIRST_OUTPUT_TOKENS


@pytest.mark.data
def test_the_length_of_the_prompt_explains_the_outputs_of_a_real_hour() -> None:
    """The R² of the logarithm on the Azure conversation trace; the mean of the class explains nothing."""
    table = read_trace(recorded("azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz")).table
    prompt, output = (table[name].to_numpy() for name in ("prompt_tokens", "output_tokens"))
    one_class = np.zeros(len(prompt), np.int64)
    expected = _through_the_gateway(one_class, prompt, output)
    of_class = _through_the_gateway(one_class, np.ones(len(prompt)), output)

    def r2(predicted: np.ndarray) -> float:
        y, error = np.log(output), np.log(output) - np.log(np.maximum(predicted, 1.0))
        return 1.0 - float((error**2).sum() / ((y - y.mean()) ** 2).sum())

    assert r2(expected) == pytest.approx(0.68, abs=0.01)
    assert r2(of_class) < 0.09
