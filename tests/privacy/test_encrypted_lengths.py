"""The example of encrypted inference expects what a lookup in the open does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from trimtab.domain.learned_estimates import KNOTS, LengthCurve

EXAMPLE = Path(__file__).parents[2] / "examples" / "private" / "encrypted_lengths.py"


def test_encrypted_inference_is_inference() -> None:
    spec = importlib.util.spec_from_file_location("encrypted_lengths", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    curve = np.random.default_rng(0).uniform(10.0, 2000.0, KNOTS)
    prompts = [1.0, 100.0, 777.0, 5000.0, 1e6]
    tokens, cost = example.expected(curve, prompts)
    in_the_open = LengthCurve(curve.tolist())
    assert tokens == pytest.approx([in_the_open.at(prompt) for prompt in prompts], abs=0.01)
    assert cost["sent_kb"] > 1000.0
