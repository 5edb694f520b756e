"""A small network in plain loops: the same bits compiled and interpreted, and on every processor.

The activation is softsign, x / (1 + |x|), which needs no function of a library. Beside the hidden layer a
straight path leads from the inputs to the output, so that all-zero weights give 0 and a linear rule is a
special case.
"""

from __future__ import annotations

from typing import Any

from trimtab.compiled.kernel import helper


@helper(inline=True)
def n_weights(inputs: int, hidden: int) -> int:
    """Numbers that `forward` reads: hidden [hidden, inputs], bias [hidden], out [hidden], skip [inputs]."""
    return hidden * inputs + 2 * hidden + inputs


@helper
def forward(weights: Any, at_weights: int, values: Any, at_values: int, inputs: int, hidden: int) -> float:
    """The output for `inputs` values; the arrays may hold other numbers before and after."""
    bias = at_weights + hidden * inputs
    out, skip, row = bias + hidden, bias + 2 * hidden, at_weights
    output = 0.0
    for k in range(inputs):
        output += weights[skip + k] * values[at_values + k]
    for h in range(hidden):
        total = weights[bias + h]
        for k in range(inputs):
            total += weights[row + k] * values[at_values + k]
        row += inputs
        output += weights[out + h] * (total / (1.0 + abs(total)))
    return output
