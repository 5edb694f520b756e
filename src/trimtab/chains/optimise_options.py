"""The option `optimise` of a stage: how its models run, and how far their outputs may be off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from trimtab.errors import ChainError

CHOICES: Final = {
    "numbers": ("single", "half", "int8"),
    "runtime": ("plain", "compiled", "onnx", "tensorrt"),
    "device": ("auto", "cpu", "cuda"),
}
TOLERANCE: Final = {"single": 1e-3, "half": 2e-2, "int8": 1e-1}
"""By default, by numbers; of pruned models it has to be given."""


@dataclass(frozen=True)
class OptimiseOptions:
    """How a model runs."""

    numbers: str = "single"  # half: bfloat16, float16 on CUDA; int8: weights and products of matrices
    runtime: str = (
        "plain"  # as given; compiled: torch.compile; onnx: ONNX Runtime; tensorrt: on an NVIDIA GPU
    )
    prune: float = 0.0  # share of the weights of layers that become 0, the smallest ones
    tolerance: float | None = None  # of the outputs, relative; None = TOLERANCE
    device: str = "auto"  # auto: CUDA where there is one and the rest allows it
    check: bool = True  # False: neither checked nor measured

    def __post_init__(self) -> None:
        """Check each option, and which go together. Raises ChainError."""
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise _wrong(name, getattr(self, name), f"one of {', '.join(allowed)}")
        if not 0.0 <= self.prune < 1.0:
            raise _wrong("prune", self.prune, "a share from 0 to below 1")
        if self.tolerance is not None and not self.tolerance >= 0.0:
            raise _wrong("tolerance", self.tolerance, "a number from 0 on")
        if self.prune and self.tolerance is None:
            raise _wrong("tolerance", None, "a number: how far the outputs of a pruned model may be off")
        if self.runtime == "onnx" and self.numbers == "half":
            raise _wrong(
                "numbers", "half", "single or int8 in ONNX Runtime; half with plain, compiled, tensorrt"
            )
        if self.runtime == "compiled" and self.numbers == "int8":
            raise _wrong("numbers", "int8", "single or half with compiled; int8 with plain or onnx")
        if self.device != "auto" and self.runs_on not in ("", self.device):
            raise _wrong("device", self.device, f"auto or {self.runs_on}, where {self.text} runs")

    @property
    def runs_on(self) -> str:
        """The device that numbers and runtime ask for; "" = any."""
        if self.numbers == "int8" and self.runtime != "tensorrt":
            return "cpu"
        return {"onnx": "cpu", "tensorrt": "cuda"}.get(self.runtime, "")

    @property
    def largest_error(self) -> float:
        """How far outputs may be off."""
        return TOLERANCE[self.numbers] if self.tolerance is None else self.tolerance

    @property
    def text(self) -> str:
        """How a model runs, in a few words."""
        parts = [self.numbers, self.runtime, *([f"{100 * self.prune:g} % pruned"] if self.prune else [])]
        return ", ".join(parts)


def optimise_options(given: Mapping[str, Any]) -> OptimiseOptions:
    """The options of these names. Raises ChainError, also for a name that is none."""
    names = [option.name for option in fields(OptimiseOptions)]
    for name in given:
        if name not in names:
            raise ChainError(
                "no such option", field=f"optimise.{name}", expected=f"one of {', '.join(names)}"
            )
    return OptimiseOptions(**given)


def _wrong(name: str, value: object, expected: str) -> ChainError:
    return ChainError("is not possible", field=f"optimise.{name}", value=value, expected=expected)
