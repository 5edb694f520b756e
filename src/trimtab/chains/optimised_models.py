"""Makes a model run as the option `optimise` says, once it is found to give what the plain one gives."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from trimtab.chains.model_runtimes import Arguments, OnnxModel, TorchModel, exported, leaves, pruned
from trimtab.chains.optimise_options import OptimiseOptions, optimise_options
from trimtab.errors import ChainError, MissingExtra
from trimtab.live.model_scope import SCOPE, ModelRecord

_PLAIN: Final = OptimiseOptions()
_CALLS, _CALLS_S = 30, 0.5  # that are timed: at most so many, after so long no further one


def optimised(model: Any, *examples: Any, name: str = "", **options: Any) -> Callable[..., Any]:
    """A model as the stage's option `optimise` says, or as these options do.

        class Caption:                      # @stage(optimise={"numbers": "int8", "runtime": "onnx"})
            def __init__(self):
                self.model = optimised(load, (torch.zeros(1, 3, 64, 64),))

    Args:
        model: a function that makes it, a torch module, or the path of an ONNX file. Only of what a function
            makes the memory is measured.
        examples: arguments of calls, a tuple each, such as real work has. They check, measure and calibrate.
        name: in reports.
        options: see `OptimiseOptions`; each takes the place of the stage's.

    Raises ChainError where this machine cannot, or if the outputs differ by more than the tolerance.
    """
    scope = SCOPE.get()
    chosen = optimise_options({**(scope.optimise if scope is not None else {}), **options})
    calls = [each if isinstance(each, tuple) else (each,) for each in examples]
    if not calls:
        raise ChainError("has no example", field="optimised", expected="the arguments of a call, in a tuple")
    before = _held_bytes()
    made = model() if _is_maker(model) else model
    title = name or getattr(model, "__name__", "") or type(made).__name__
    plain = _plain(made, chosen)
    wanted = [plain(*each) for each in calls]
    is_graph = isinstance(plain, OnnxModel)
    if chosen == _PLAIN or (is_graph and (chosen.runtime, chosen.numbers) == ("onnx", "single")):
        return plain
    plain_memory = _held_bytes() - before if _is_maker(model) else float("nan")
    fast = _fast(made, chosen, calls, wanted[0])
    if not chosen.check:
        return fast
    pairs = zip(calls, wanted, strict=True)
    error = max(_error(_first_call(fast, each, chosen), right) for each, right in pairs)
    if not error <= chosen.largest_error:
        raise ChainError(
            f"{title}: outputs differ by {error:.3g} of the plain model's", field="optimise.tolerance",
            value=chosen.largest_error, expected=f"{chosen.text} within it, a larger one, or other numbers",
        )  # fmt: skip
    plain_s, call_s = _seconds(plain, calls[0]), _seconds(fast, calls[0])
    plain_bytes = plain.file_bytes
    del plain, made, wanted
    memory = _held_bytes() - before if _is_maker(model) else float("nan")
    if scope is not None:
        scope.records.append(
            ModelRecord(
                title, chosen.text, error, chosen.largest_error, plain_s, call_s, plain_bytes,
                fast.file_bytes, plain_memory, memory,
            )
        )  # fmt: skip
    return fast


def _is_maker(model: Any) -> bool:
    return callable(model) and not hasattr(model, "state_dict")


def _plain(model: Any, chosen: OptimiseOptions) -> TorchModel | OnnxModel:
    if isinstance(model, str | Path):
        try:
            graph = Path(model).read_bytes()
        except OSError as error:
            raise ChainError(
                f"cannot be read: {error.strerror}", file=str(model), expected="an ONNX file"
            ) from error
        return OnnxModel(graph, _PLAIN, (), None)
    if not hasattr(model, "state_dict"):
        kind = type(model).__name__
        raise ChainError(
            "is no model", field="optimised", value=kind, expected="a torch module or an ONNX file"
        )
    on_processor = "cpu" in (chosen.device, chosen.runs_on)
    return TorchModel(model, OptimiseOptions(device="cpu" if on_processor else "auto"))


def _fast(
    made: Any, chosen: OptimiseOptions, calls: Sequence[Arguments], like: Any
) -> TorchModel | OnnxModel:
    in_graph = chosen.runtime in ("onnx", "tensorrt")
    if isinstance(made, str | Path):
        if not in_graph or chosen.prune:
            field, value = ("prune", chosen.prune) if in_graph else ("runtime", chosen.runtime)
            expected = "runtime: onnx or tensorrt, without prune, for an ONNX file"
            raise ChainError(
                "needs a torch module", field=f"optimise.{field}", value=value, expected=expected
            )
        return OnnxModel(Path(made).read_bytes(), chosen, calls, None)
    if not in_graph:
        return TorchModel(made, chosen)
    if chosen.prune:
        made = pruned(made, chosen.prune)
    return OnnxModel(exported(made, calls[0]), chosen, calls, like)


def _first_call(fast: Callable[..., Any], arguments: Arguments, chosen: OptimiseOptions) -> Any:
    """Compiling happens here. Raises ChainError where the machine cannot."""
    try:
        return fast(*arguments)
    except (MissingExtra, ChainError):
        raise
    except Exception as error:  # of many kinds: no compiler, an operation that these numbers do not have
        first = str(error).strip().partition("\n")[0]
        expected = "other numbers or another runtime, or what this one needs (compiled: a C++ compiler)"
        raise ChainError(
            f"this machine cannot run the model so: {type(error).__name__}: {first}", field="optimise",
            value=chosen.text, expected=expected,
        ) from error  # fmt: skip


def _error(found: Any, right: Any) -> float:
    """How far an output is off, as a share of the right one's length."""
    pairs = list(zip(leaves(found), leaves(right), strict=True))
    off = sum(float(np.sum(np.square(a.astype(np.float64) - b.astype(np.float64)))) for a, b in pairs)
    length = sum(float(np.sum(np.square(b.astype(np.float64)))) for _, b in pairs)
    return float(np.sqrt(off / length)) if length else float(np.sqrt(off))


def _seconds(model: Callable[..., Any], arguments: Arguments) -> float:
    """The median of some calls."""
    taken: list[float] = []
    while len(taken) < _CALLS and sum(taken) < _CALLS_S:
        begun_s = time.perf_counter()
        model(*arguments)
        taken.append(time.perf_counter() - begun_s)
    return median(taken)


def _held_bytes() -> float:
    """What this process holds: freed memory goes back first."""
    import psutil

    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not in every C library
        ctypes.CDLL(None).malloc_trim(0)
    return float(psutil.Process().memory_info().rss)
