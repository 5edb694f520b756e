"""Weights: safetensors files in half precision, with what the model is built from in their header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from trimtab.errors import ChainError


def save_weights(path: Path, model: nn.Module, header: dict[str, Any]) -> None:
    """Write weights in half precision."""
    tensors = {name: value.detach().half().contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, path, {"header": json.dumps(header)})
    path.chmod(0o644)


def read_header(path: Path) -> dict[str, Any]:
    """Read what a model is built from. Raises ChainError where the file is none of ours."""
    try:
        with safe_open(path, "pt") as file:
            return dict(json.loads(file.metadata()["header"]))
    except (OSError, SafetensorError, TypeError, KeyError, ValueError) as error:
        raise ChainError(
            f"cannot be read as weights: {error}", file=str(path), expected="a file that `make models` wrote"
        ) from None


def load_weights(path: Path, model: nn.Module) -> nn.Module:
    """Put weights into a model, in single precision, ready to run."""
    with safe_open(path, "pt") as file:
        state = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 - no mapping
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ChainError(f"does not fit the model: {error}", file=str(path)) from None
    return model.eval()
