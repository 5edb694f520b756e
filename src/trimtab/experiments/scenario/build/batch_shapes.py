"""Shapes of requests: what must be equal within a batch, such as steps and pixels of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from trimtab.errors import ScenarioError
from trimtab.experiments.scenario.spec.service_classes import ServiceClass
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray

MOST_SHAPES = 256  # of a class; a node has a queue for each


def shapes_of(
    classes: Mapping[str, ServiceClass],
    class_idx: IntArray,
    parts_of: Callable[[str, IntArray], Mapping[str, FloatArray]],
) -> IntArray | None:
    """The number of each request's shape within its class, [requests]; None if no class has shapes.

    `parts_of(class, rows)` gives values [rows] by name. Raises ScenarioError for a part that there is not,
    and for more than MOST_SHAPES.
    """
    if not any(service.batch is not None and service.batch.same for service in classes.values()):
        return None
    shapes = np.zeros(len(class_idx), np.int64)
    for c, (name, service) in enumerate(classes.items()):
        rows = np.flatnonzero(class_idx == c)
        if service.batch is None or not service.batch.same or not len(rows):
            continue
        parts, field = parts_of(name, rows), f"classes.{name}.batch.same"
        if missing := [part for part in service.batch.same if part not in parts]:
            expected = f"parts of the size, which is a product, or columns of the trace: {', '.join(parts)}"
            raise ScenarioError("no such part", field=field, value=missing[0], expected=expected)
        values = np.stack([parts[part] for part in service.batch.same], axis=1)
        each, shapes[rows] = np.unique(values, axis=0, return_inverse=True)
        if len(each) > MOST_SHAPES:
            expected = f"at most {MOST_SHAPES} different combinations, as few values are meant to be equal"
            raise ScenarioError("too many shapes", field=field, value=len(each), expected=expected)
    return shapes
