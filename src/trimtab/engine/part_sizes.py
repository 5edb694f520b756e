"""Sizes of the parts of a request: whole images, equal or in proportion to weights of the plan."""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.domain.view import Plan


@helper
def part_frac(plan: Plan, class_idx: int, images: int, count: int, i: int) -> float:
    """Share of the i-th of `count` parts of a request of so many images (tiles, …), each at least one."""
    classes, most = plan.part_weight.shape
    if class_idx >= classes or count > most:
        return (images // count + (1 if i < images % count else 0)) / images
    total = 0.0
    for k in range(count):
        total += plan.part_weight[class_idx, k]
    before, end, sum_so_far = 0, 0, 0.0
    for k in range(i + 1):  # each part ends at the nearest image that leaves one for each of the others
        sum_so_far += plan.part_weight[class_idx, k]
        nearest = int(images * sum_so_far / total + 0.5)
        before, end = end, max(end + 1, min(nearest, images - (count - 1 - k)))
    return (end - before) / images
