"""How a model runs: numbers, runtime, device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from trimtab.chains.model_runtimes import quantised
from trimtab.errors import ChainError

CHOICES = {
    "numbers": ("single", "half", "int8"),
    "runtime": ("torch", "compiled", "onnx"),
    "device": ("auto", "cpu", "cuda"),
}


@dataclass(frozen=True)
class ModelOptions:
    """How a model runs."""

    numbers: str = (
        "single"  # single; half: bfloat16 (float16 on CUDA); int8: weights and products of linear layers
    )
    runtime: str = "torch"  # torch; compiled: torch.compile; onnx: ONNX Runtime, on the processor
    device: str = "auto"  # auto: CUDA where there is one
    threads: int = 1  # of the processor

    def __post_init__(self) -> None:
        """Check each option, and which go together. Raises ChainError."""
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ChainError(
                    "no such option",
                    field=name,
                    value=getattr(self, name),
                    expected=f"one of {', '.join(allowed)}",
                )
        if not isinstance(self.threads, int) or self.threads < 1:
            raise ChainError(
                "out of range", field="threads", value=self.threads, expected="a whole number from 1 on"
            )
        if self.runtime == "onnx" and self.numbers == "half":
            raise ChainError(
                "does not run in ONNX Runtime", field="numbers", value="half", expected="single or int8"
            )
        if self.numbers == "int8" and self.device == "cuda":
            raise ChainError(
                "runs on the processor only", field="numbers", value="int8", expected="device: cpu"
            )

    def chosen_device(self) -> str:
        """Return cuda or cpu. Raises ChainError where CUDA is asked for and there is none."""
        import torch

        has_cuda = torch.cuda.is_available()
        if self.device == "cuda" and not has_cuda:
            raise ChainError(
                "this machine has no CUDA device", field="device", value="cuda", expected="auto or cpu"
            )
        on_processor = self.device == "cpu" or self.numbers == "int8" or self.runtime == "onnx"
        return "cuda" if has_cuda and not on_processor else "cpu"


def options_of(given: Mapping[str, Any]) -> ModelOptions:
    """Build options from names and values. Raises ChainError for a name that is none."""
    names = [field.name for field in fields(ModelOptions)]
    for name in given:
        if name not in names:
            raise ChainError("no such option", field=name, expected=f"one of {', '.join(names)}")
    return ModelOptions(**given)


def prepared(model: Any, options: ModelOptions) -> Any:
    """Bring a torch model to its device, numbers and runtime (torch or compiled)."""
    import torch

    torch.set_num_threads(options.threads)
    device = options.chosen_device()
    if options.numbers == "int8":
        model = quantised(model)
    elif options.numbers == "half":
        model = model.to(torch.float16 if device == "cuda" else torch.bfloat16)
    model = model.to(device)
    return torch.compile(model) if options.runtime == "compiled" else model
