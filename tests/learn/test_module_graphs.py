"""Graphs of training steps of torch modules, by hand and beside what really runs."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="needs the extra learn")

from trimtab.errors import UsageError  # noqa: E402
from trimtab.learn.module_graphs import graph_of_step, inputs_of, measured_step  # noqa: E402


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Pictures(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.MaxPool2d(2)
        )

    def forward(self, x):
        seen = self.net(x).flatten(2)
        return torch.nn.functional.scaled_dot_product_attention(seen, seen, seen)


class Decides(Line):
    def forward(self, x):
        y = self.first(x)
        return y * 2 if y.sum() > 0 else y


def test_products_of_a_step_have_the_flops_of_their_shapes() -> None:
    """Forward 2·n·in·out for each layer; backward twice that, but nothing flows to the inputs."""
    step = graph_of_step(Line(), inputs_of(None, ["6"], 5), "Line")
    flop = sum(each.times * each.flop for each in step.operators if each.kind in ("mm", "addmm"))
    assert flop == 2 * 5 * (2 * 6 * 8 + 3 * 8 * 3)
    assert (step.parameters, step.batch, step.sample_bytes) == (6 * 8 + 8 + 8 * 3 + 3, 5, 24)
    assert math.isnan(step.seconds)


@pytest.mark.parametrize(("made", "shape"), [(Line, "6"), (Pictures, "3x8x8")])
def test_the_graph_is_what_runs(made: type, shape: str) -> None:
    module, inputs = made(), inputs_of(None, [shape], 2)
    graph, run = graph_of_step(module, inputs, "m"), measured_step(module, inputs, "m")
    ours, theirs = ({(o.kind, o.flop, o.bytes, o.times) for o in step.operators} for step in (graph, run))
    assert ours == theirs
    assert run.seconds > 0
    assert all(each.seconds > 0 for each in run.operators)


def test_a_module_that_does_not_export_names_the_operator_and_the_line() -> None:
    with pytest.raises(UsageError, match=r"Decides: .*does not export.*test_module_graphs.py.*operator item"):
        graph_of_step(Decides(), inputs_of(None, ["6"], 2), "Decides")


def test_inputs_by_shape_or_by_the_module() -> None:
    (tokens,) = inputs_of(None, ["7:int64"], 3)
    assert (tokens.shape, tokens.dtype) == ((3, 7), torch.int64)
    module = Line()
    module.example_inputs = lambda batch: (torch.zeros(batch, 6),)
    assert inputs_of(module, (), 4)[0].shape == (4, 6)
    for shapes, told in (((), "inputs of the module"), (["3y"], "3y"), (["3:float99"], "float99")):
        with pytest.raises(UsageError, match=told):
            inputs_of(Line(), shapes, 1)
