"""Models in other numbers and runtimes: what each needs, and what it refuses."""

from __future__ import annotations

import copy
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from trimtab.chains.optimise_options import OptimiseOptions
from trimtab.errors import ChainError, MissingExtra

OPSET: Final = 17
Arguments = tuple[Any, ...]


def quantised(model: Any) -> Any:
    """A torch module whose linear layers compute with integers of 8 bits."""
    import torch

    with warnings.catch_warnings(action="ignore"):  # torchao takes over; it would be one more package
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def pruned(model: Any, share: float) -> Any:
    """A copy of a torch module without the smallest weights of its linear layers and convolutions."""
    import torch
    from torch.nn.utils import prune

    model = copy.deepcopy(model)
    kinds = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
    layers = [(layer, "weight") for layer in model.modules() if isinstance(layer, kinds)]
    if not layers:
        raise ChainError(
            "has no layer to prune", field="optimise.prune", expected="linear layers, convolutions"
        )
    prune.global_unstructured(layers, prune.L1Unstructured, amount=share)
    for layer, name in layers:
        prune.remove(layer, name)
    return model


class TorchModel:
    """A torch module on its device, in its numbers."""

    def __init__(self, model: Any, options: OptimiseOptions) -> None:
        import torch

        self._torch, self.device = torch, _device(options)
        model = model.eval()
        if options.prune:
            model = pruned(model, options.prune)
        if options.numbers == "int8":
            model = quantised(model)
        self._dtype = None
        if options.numbers == "half":
            self._dtype = torch.float16 if self.device == "cuda" else torch.bfloat16
            model = copy.deepcopy(model).to(self._dtype)
        self.module = model.to(self.device)
        self._call = torch.compile(self.module) if options.runtime == "compiled" else self.module

    def __call__(self, *arguments: Any) -> Any:
        """The outputs, of single precision, where the arguments were."""
        with self._torch.inference_mode():
            found = self._call(*(self._taken(argument) for argument in arguments))
        return _mapped(found, self._given)

    def _taken(self, argument: Any) -> Any:
        if not isinstance(argument, self._torch.Tensor):
            return argument
        is_cast = self._dtype is not None and argument.is_floating_point()
        return argument.to(self.device, self._dtype if is_cast else None)

    def _given(self, output: Any) -> Any:
        if not isinstance(output, self._torch.Tensor):
            return output
        return output.to("cpu", self._torch.float32 if output.dtype == self._dtype else None)

    @property
    def file_bytes(self) -> int:
        """Its weights as a file."""
        file = io.BytesIO()
        self._torch.save(self.module.state_dict(), file)
        return file.tell()


class OnnxModel:
    """A graph in ONNX Runtime. It takes arrays or tensors, and gives what the plain model gives."""

    def __init__(
        self, graph: bytes, options: OptimiseOptions, examples: Sequence[Arguments], like: Any
    ) -> None:
        onnxruntime = _onnxruntime()
        if options.numbers == "int8":
            graph = quantised_graph(graph, examples)
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        threads = _threads()
        settings.intra_op_num_threads = settings.inter_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(graph, settings, providers=_providers(options))
        self._names = [taken.name for taken in self._session.get_inputs()]
        self._like, self.file_bytes = like, len(graph)

    def __call__(self, *arguments: Any) -> Any:
        """The outputs."""
        feeds = {name: np.asarray(value) for name, value in zip(self._names, arguments, strict=True)}
        found = self._session.run(None, feeds)
        return _shaped(found, self._like)


def exported(model: Any, example: Arguments) -> bytes:
    """A torch module as an ONNX graph; the first axis of each tensor may be of any length."""
    import torch

    _onnxruntime()
    names = [f"input_{k}" for k in range(len(example))]
    axes = {n: {0: "batch"} for n, value in zip(names, example, strict=True) if getattr(value, "ndim", 0)}
    file = io.BytesIO()
    try:
        with warnings.catch_warnings(action="ignore"):  # of the older exporter; the newer needs more packages
            torch.onnx.export(
                model.cpu().eval(),
                example,
                file,
                dynamo=False,
                input_names=names,
                dynamic_axes=axes,
                opset_version=OPSET,
            )
    except Exception as error:  # of many kinds
        first = str(error).strip().partition("\n")[0]
        expected = "a module that torch.onnx exports, or runtime: plain or compiled"
        raise ChainError(
            f"cannot become ONNX: {first}", field="optimise.runtime", expected=expected
        ) from error
    return file.getvalue()


def quantised_graph(graph: bytes, examples: Sequence[Arguments] = ()) -> bytes:
    """A graph that computes with integers of 8 bits; with convolutions it is calibrated on the examples.

    Weights take 7 bits: x86 processors without VNNI add products of 8 bits in 16, which overflow.
    """
    from onnxruntime import quantization

    with tempfile.TemporaryDirectory() as folder, _quiet():
        before, after = Path(folder, "single.onnx"), Path(folder, "int8.onnx")
        before.write_bytes(graph)
        if _has_convolutions(graph):
            reader = _Examples(graph, examples)
            quantization.quantize_static(
                before, after, reader, weight_type=quantization.QuantType.QInt8, reduce_range=True
            )
        else:
            quantization.quantize_dynamic(
                before, after, weight_type=quantization.QuantType.QInt8, reduce_range=True
            )
        return after.read_bytes()


@contextmanager
def _quiet() -> Iterator[None]:
    """Context without the advice that the quantiser gives on the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


class _Examples:
    """Examples as ONNX Runtime's calibration reads them, one by one."""

    def __init__(self, graph: bytes, examples: Sequence[Arguments]) -> None:
        import onnx

        taken = [given.name for given in onnx.load_from_string(graph).graph.input]
        self._rows = iter([dict(zip(taken, map(np.asarray, each), strict=True)) for each in examples])

    def get_next(self) -> dict[str, Any] | None:
        """The next example."""
        return next(self._rows, None)


def _has_convolutions(graph: bytes) -> bool:
    import onnx

    return any(node.op_type == "Conv" for node in onnx.load_from_string(graph).graph.node)


def _onnxruntime() -> Any:
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError as missing:
        expected = "pip install 'trimtab[models]'"
        raise MissingExtra(
            f"ONNX Runtime needs {missing.name}", field="optimise.runtime", expected=expected
        ) from missing
    return onnxruntime


def _providers(options: OptimiseOptions) -> list[Any]:
    if options.runtime != "tensorrt":
        return ["CPUExecutionProvider"]
    if "TensorrtExecutionProvider" not in _onnxruntime().get_available_providers():
        raise ChainError(
            "this machine has no TensorRT", field="optimise.runtime", value="tensorrt",
            expected="onnxruntime-gpu with TensorRT and an NVIDIA GPU, or another runtime",
        )  # fmt: skip
    return [("TensorrtExecutionProvider", {"trt_fp16_enable": options.numbers == "half"})]


def _device(options: OptimiseOptions) -> str:
    import torch

    has_cuda = torch.cuda.is_available()
    if options.device == "cuda" and not has_cuda:
        raise ChainError(
            "this machine has no CUDA device", field="optimise.device", value="cuda", expected="auto or cpu"
        )
    return "cuda" if has_cuda and "cpu" not in (options.device, options.runs_on) else "cpu"


def _threads() -> int:
    """As many as a worker may use: those of its other libraries."""
    return int(os.environ.get("OMP_NUM_THREADS", "0") or 0)


def _mapped(found: Any, change: Any) -> Any:
    """An output with each tensor in it changed."""
    if isinstance(found, dict):
        return {name: _mapped(part, change) for name, part in found.items()}
    if isinstance(found, list | tuple):
        parts = [_mapped(part, change) for part in found]
        return type(found)(*parts) if hasattr(found, "_fields") else type(found)(parts)
    return change(found)


def leaves(found: Any) -> list[np.ndarray[Any, Any]]:
    """The arrays of an output, in order."""
    if isinstance(found, dict):
        return [leaf for part in found.values() for leaf in leaves(part)]
    if isinstance(found, list | tuple):
        return [leaf for part in found for leaf in leaves(part)]
    return [] if found is None else [np.asarray(found)]


def _shaped(arrays: Sequence[Any], like: Any) -> Any:
    """Arrays as the plain model gives them: tensors in tuples or tables, or a list of arrays."""
    if like is None:
        return arrays[0] if len(arrays) == 1 else list(arrays)
    import torch

    rest = iter(arrays)
    return _mapped(like, lambda _: torch.from_numpy(np.array(next(rest))))
