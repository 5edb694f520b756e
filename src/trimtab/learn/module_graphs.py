"""The computation graph of a training step of a torch module, and its measured seconds.

    step = graph_of_step(Net(), (torch.zeros(32, 3, 32, 32),), "Net")
    seconds = measured_step(Net(), (torch.zeros(32, 3, 32, 32),), "Net").seconds

`torch.export` makes the forward graph; it is traced on tensors without data, with its backward pass and
the update of the parameters by SGD. The loss is the mean of all outputs. Nothing is computed, so that a graph
needs no accelerator and no memory. FLOPs are those of `torch.utils.flop_counter`; bytes are those of all
tensors that an operator reads or writes.
"""

from __future__ import annotations

import importlib
import io
import logging
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

from trimtab.errors import MissingExtra, UsageError
from trimtab.training.performance.module_steps import ModuleStep, Operator

try:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count
except ModuleNotFoundError as missing:
    raise MissingExtra("needs torch", expected="pip install 'trimtab[learn]'") from missing

_REPEATS: Final = 15
_FREE: Final = frozenset({"empty", "empty_strided", "new_empty", "detach"})
_ATTENTION: Final = "aten._scaled_dot_product_flash_attention_for_cpu"


def load_module(named: str) -> Any:
    """The module of `package.module:Name`: an instance, or what a class or function without arguments makes.

    Raises UsageError for a name that there is not, and for what is no torch module.
    """
    where, _, name = named.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(where)
        for part in name.split("."):
            found = getattr(found, part)
        made = found if isinstance(found, torch.nn.Module) else found()
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        expected = "MODULE:NAME of a torch module, or of a class or function without arguments that makes one"
        problem = f"no torch module: {type(error).__name__}: {error}"
        raise UsageError(problem, value=named, expected=expected) from None
    if not isinstance(made, torch.nn.Module):
        raise UsageError("no torch module", value=named, expected="a torch.nn.Module")
    return made


def inputs_of(module: Any, shapes: Sequence[str], batch: int) -> tuple[Any, ...]:
    """Inputs of so many samples: of `shapes` such as 3x32x32 or 128:int64, else the module's own.

    A module's own are what its method `example_inputs(batch)` gives. Raises UsageError.
    """
    if not shapes:
        own = getattr(module, "example_inputs", None)
        if own is None:
            expected = "the shape of a sample, such as 3x32x32 or 128:int64, for each argument of forward"
            raise UsageError("inputs of the module are not known", field="input", expected=expected)
        return tuple(own(batch))
    return tuple(_input_of(shape, batch) for shape in shapes)


def _input_of(shape: str, batch: int) -> Any:
    found = re.fullmatch(r"([1-9]\d*(?:x[1-9]\d*)*)(?::(\w+))?", shape)
    dtype = getattr(torch, (found and found[2]) or "float32", None)
    if found is None or not isinstance(dtype, torch.dtype):
        expected = "numbers above 0 joined by x, and a type of torch, such as 3x32x32 or 128:int64"
        raise UsageError("no shape of a sample", field="input", value=shape, expected=expected)
    size = (batch, *(int(n) for n in found[1].split("x")))
    try:
        return torch.rand(size, dtype=dtype) if dtype.is_floating_point else torch.zeros(size, dtype=dtype)
    except (RuntimeError, TypeError):  # the latter for a number beyond 64 bits
        raise UsageError("no memory for so large an input", field="input", value=shape) from None


def graph_of_step(module: Any, inputs: tuple[Any, ...], name: str) -> ModuleStep:
    """The operators of a training step. Raises UsageError for a module that does not export."""
    printed, fake, recorded = io.StringIO(), FakeTensorMode(), _Recorder()
    logged = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(printed), redirect_stderr(printed):  # where torch shows what it can't export
            graph = torch.export.export(module.train(), inputs).module()
        state = {}
        for key, tensor in (*graph.named_parameters(), *graph.named_buffers()):
            state[key] = fake.from_tensor(tensor.detach()).requires_grad_(tensor.requires_grad)
        samples = tuple(fake.from_tensor(each) for each in inputs)
        with fake, recorded:
            learnt = [tensor for tensor in state.values() if tensor.requires_grad]
            _step(lambda: torch.func.functional_call(graph, state, samples), learnt)
    except Exception as error:  # what fails to export raises errors of many kinds
        raise _not_exported(name, error, printed.getvalue()) from None
    finally:
        logging.disable(logged)
    return _step_of(module, inputs, name, recorded)


def measured_step(module: Any, inputs: tuple[Any, ...], name: str) -> ModuleStep:
    """The operators of a training step, with the seconds of each and of the whole step, by one thread here.

    Medians of fifteen runs after a first one. Seconds are those of the processor, so that waiting for it does
    not count; on an accelerator, to which the module and its inputs were moved, they are those of the clock.
    """
    module.train()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        learnt = [tensor for tensor in module.parameters() if tensor.requires_grad]
        on_cpu = all(tensor.device.type == "cpu" for tensor in learnt)
        now_s = time.process_time if on_cpu else _accelerator_s

        def seconds() -> float:
            begun_s = now_s()
            _step(lambda: module(*inputs), learnt)
            return now_s() - begun_s

        try:
            seconds()
        except Exception as error:  # what a module raises may be anything
            raise _does_not_run(name, error) from None
        taken_s = statistics.median(seconds() for _ in range(_REPEATS))
        recorded = _Recorder(now_s)
        with recorded:
            for _ in range(_REPEATS):
                _step(lambda: module(*inputs), learnt)
    finally:
        torch.set_num_threads(threads)
    return _step_of(module, inputs, name, recorded, taken_s)


def _does_not_run(name: str, error: Exception) -> UsageError:
    line = next(iter(str(error).splitlines()), "")
    expected = "a module that runs on inputs of these shapes"
    return UsageError(f"does not run: {type(error).__name__}: {line[:200]}", value=name, expected=expected)


def _accelerator_s() -> float:
    torch.accelerator.synchronize()
    return time.perf_counter()


def _step(forward: Callable[[], Any], learnt: list[Any]) -> None:
    outputs = [each for each in tree_leaves(forward()) if isinstance(each, torch.Tensor)]
    sum(each.mean() for each in outputs if each.requires_grad).backward()
    optimizer = torch.optim.SGD(learnt, lr=1e-6)
    optimizer.step()
    optimizer.zero_grad()


class _Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """What every operator is called with, and, with a clock, how long it takes."""

    def __init__(self, now_s: Callable[[], float] | None = None) -> None:
        super().__init__()
        self.now_s = now_s
        self.seconds: dict[tuple[str, float, float], list[float]] = defaultdict(list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        begun_s = self.now_s() if self.now_s else 0.0
        out = func(*args, **kwargs)
        taken_s = self.now_s() - begun_s if self.now_s else 0.0
        packet = func.overloadpacket
        library, _, kind = str(packet).partition(".")
        if library == "aten" and not func.is_view and kind not in _FREE:
            tensors = [each for each in tree_leaves((args, kwargs, out)) if isinstance(each, torch.Tensor)]
            moved = sum(each.numel() * each.element_size() for each in tensors)
            self.seconds[kind, _flop(packet, args, kwargs, out), float(moved)].append(taken_s)
        return out


def _flop(packet: Any, args: Any, kwargs: Any, out: Any) -> float:
    if str(packet) == _ATTENTION:
        return float(sdpa_flop_count(args[0].shape, args[1].shape, args[2].shape))
    if str(packet) == f"{_ATTENTION}_backward":
        return float(sdpa_backward_flop_count(*(each.shape for each in args[:4])))
    formula = flop_registry.get(packet)
    return float(formula(*args, **kwargs, out_val=out)) if formula else 0.0


def _step_of(
    module: Any, inputs: tuple[Any, ...], name: str, recorded: _Recorder, seconds: float = float("nan")
) -> ModuleStep:
    runs = _REPEATS if recorded.now_s else 1
    operators = [
        Operator(*key, len(each) // runs, statistics.median(each) if recorded.now_s else float("nan"))
        for key, each in recorded.seconds.items()
    ]
    parameters = sum(each.numel() for each in module.parameters())
    sample_bytes = sum(each[0].numel() * each.element_size() for each in inputs)
    return ModuleStep(name, len(inputs[0]), parameters, sample_bytes, tuple(operators), seconds)


def _not_exported(name: str, error: Exception, printed: str) -> UsageError:
    """The error of torch in one line, with the last operator that it names, and where that stands."""
    line = next((each.strip() for each in str(error).splitlines() if each.strip()), type(error).__name__)
    operators = re.findall(r"aten\.(?!_assert)(\w+)", printed + str(error))
    places = re.findall(r"File: \S*?([^/\s]+:\d+) in forward, code: (.+)", printed)
    where = f", at {places[-1][0]}: {places[-1][1]}" if places else ""
    return UsageError(
        f"the module does not export: {line[:200]}{where}",
        field=name,
        value=f"operator {operators[-1]}" if operators else type(error).__name__,
        expected="a module that torch.export takes: no result decides what runs next, or the size of a "
        "tensor; `--way runs` measures it instead",
    )
