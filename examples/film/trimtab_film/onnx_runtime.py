"""The picture transformer in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trimtab.chains.model_runtimes import exported, quantised_graph
from trimtab_film.extras import require
from trimtab_film.model_options import ModelOptions
from trimtab_film.picture_model import CODE_DIM, CODES, PictureTransformer


def as_onnx(
    model: PictureTransformer, options: ModelOptions
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Export a transformer and return its function in ONNX Runtime, quantised where the options say so."""
    require("", "ONNX Runtime", "onnxruntime", "onnx")
    import onnxruntime

    codes = torch.zeros(2, CODE_DIM, CODES, CODES)
    words = torch.zeros(2, model.size.caption_words, dtype=torch.long)
    graph = exported(model, (codes, codes, torch.zeros(2), words))
    if options.numbers == "int8":
        graph = quantised_graph(graph)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = options.threads
    session = onnxruntime.InferenceSession(graph, settings, providers=["CPUExecutionProvider"])
    inputs = [taken.name for taken in session.get_inputs()]

    def estimate(*values: Tensor) -> Tensor:
        feeds = {name: value.numpy() for name, value in zip(inputs, values, strict=True)}
        return torch.from_numpy(session.run(None, feeds)[0])

    return estimate
