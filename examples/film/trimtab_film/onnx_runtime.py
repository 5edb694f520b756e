"""The picture transformer in ONNX Runtime."""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from trimtab_film.extras import require
from trimtab_film.model_options import ModelOptions
from trimtab_film.picture_model import CODE_DIM, CODES, PictureTransformer

INPUTS = ("codes", "sketch", "times", "words")


def as_onnx(
    model: PictureTransformer, options: ModelOptions
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Export a transformer and return its function in ONNX Runtime, quantised where the options say so."""
    require("", "ONNX Runtime", "onnxruntime", "onnx")
    import onnxruntime

    exported = _export(model)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = options.threads
    graph = _quantise(exported) if options.numbers == "int8" else exported
    session = onnxruntime.InferenceSession(graph, settings, providers=["CPUExecutionProvider"])

    def estimate(*values: Tensor) -> Tensor:
        feeds = {name: value.numpy() for name, value in zip(INPUTS, values, strict=True)}
        return torch.from_numpy(session.run(None, feeds)[0])

    return estimate


def _export(model: PictureTransformer) -> bytes:
    codes = torch.zeros(2, CODE_DIM, CODES, CODES)
    example = (codes, codes, torch.zeros(2), torch.zeros(2, model.size.caption_words, dtype=torch.long))
    file = io.BytesIO()
    with warnings.catch_warnings(
        action="ignore"
    ):  # of the older exporter; the newer one needs a further package
        torch.onnx.export(
            model,
            example,
            file,
            dynamo=False,
            input_names=list(INPUTS),
            output_names=["estimate"],
            dynamic_axes={name: {0: "batch"} for name in (*INPUTS, "estimate")},
            opset_version=17,
        )
    return file.getvalue()


def _quantise(exported: bytes) -> bytes:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "single.onnx"), Path(folder, "int8.onnx")
        before.write_bytes(exported)
        quantize_dynamic(before, after, weight_type=QuantType.QInt8)
        return after.read_bytes()
