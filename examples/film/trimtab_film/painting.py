"""Runs the small picture model: sketch, steps of the flow, decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.errors import ChainError
from trimtab_film import weights_folder
from trimtab_film.captions import WORDS, word_numbers
from trimtab_film.model_options import ModelOptions, prepared
from trimtab_film.picture_model import (
    CODE_DIM,
    CODES,
    DECODED_PX,
    Decoder,
    PictureTransformer,
    Sketch,
    TransformerSize,
)
from trimtab_film.scenes import scene_of
from trimtab_film.weights import load_weights, read_header

Estimate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class PictureModel(torch.nn.Module):
    """Sketch, transformer and decoder in one file."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.sketch, self.transformer, self.decoder = Sketch(size), PictureTransformer(size), Decoder()

    def header(self) -> dict[str, Any]:
        """Say what the model is built from."""
        return {"size": asdict(self.transformer.size), "words": list(WORDS)}


def load_picture_model(path: Path) -> PictureModel:
    """Load a picture model. Raises ChainError where it knows other words."""
    header = read_header(path)
    if header.get("words") != list(WORDS):
        raise ChainError(
            "knows other words than this version", file=str(path), expected="weights of `make models`"
        )
    model = PictureModel(TransformerSize(**header["size"]))
    load_weights(path, model)
    return model


class SmallPainter:
    """Paints captions of the demonstration."""

    def __init__(self, path: Path | None, options: ModelOptions, size_px: int, steps: int) -> None:
        model = load_picture_model(path or weights_folder() / "pictures.safetensors")
        self.scale, self.steps = size_px / DECODED_PX, steps
        self.device = options.chosen_device()
        if options.runtime == "onnx":
            from trimtab_film.onnx_runtime import as_onnx

            self.estimate: Estimate = as_onnx(model.transformer, options)
            self.sketch, self.decoder = model.sketch, model.decoder
            torch.set_num_threads(options.threads)
        else:
            self.estimate = prepared(model.transformer, options)
            self.sketch, self.decoder = prepared(model.sketch, options), prepared(model.decoder, options)
        self.numbers = next(self.decoder.parameters()).dtype

    @torch.inference_mode()
    def paint(self, captions: Sequence[str], seeds: Sequence[int]) -> list[np.ndarray]:
        """Paint captions: arrays (side, side, 3) of bytes."""
        scenes = [scene_of(caption) for caption in captions]
        words = torch.tensor([word_numbers(scene) for scene in scenes], device=self.device)
        noise = torch.stack([_noise(seed) for seed in seeds]).to(self.device, self.numbers)
        pictures = self.decoder(self._flow(noise, words), self.scale).float()
        drawn = ((pictures.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).cpu().numpy()
        return [p[:, ::-1] if s.side == "right" else p for p, s in zip(drawn, scenes, strict=True)]

    def _flow(self, codes: Tensor, words: Tensor) -> Tensor:
        """Go from noise to codes, at each step towards the end that the transformer estimates."""
        sketch = self.sketch(words)
        for k in range(self.steps):
            times = codes.new_full((len(codes),), k / self.steps)
            estimate = self.estimate(codes, sketch, times, words)
            codes = codes + (estimate - codes) / (self.steps - k)
        return codes


def _noise(seed: int) -> Tensor:
    return torch.randn(CODE_DIM, CODES, CODES, generator=torch.Generator().manual_seed(seed))
