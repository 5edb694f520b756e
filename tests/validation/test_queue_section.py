"""The section `queues`: what is refused, and with which words."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.domain.queue_tree import QueueOrder
from trimtab.errors import UsageError
from trimtab.validation.base import Spec
from trimtab.validation.problems import checked
from trimtab.validation.queue_section import Queues, tree_of, unknown_tenants
from trimtab.validation.yaml_text import parsed_yaml


class File(Spec):
    queues: Queues | None = None


def read(text: str) -> File:
    data = parsed_yaml("queues: " + text, "f.yaml", UsageError, "no file", "queues")
    return checked(lambda: File.model_validate(data), File, "f.yaml", UsageError)


def test_a_section_becomes_a_tree() -> None:
    text = """
      research:
        {weight: 3, guarantee: 0.4, limit: 0.8, notice_s: 30, queues: {vision: {tenants: [a, b], order: fair,
         user_limit: 0.5, max_running: 20}, text: {tenants: c}}}
      default: {limit: {gpus: 8}}
    """
    queues = read(text).queues
    assert queues is not None
    tree = tree_of(queues, ["gpus"])
    assert tree.paths == ("", "research", "research.vision", "research.text", "default")
    assert tree.tenants == (("a", "b"), ("c",), ())
    assert tree.notice_s.tolist() == [np.inf, 30, np.inf, np.inf, np.inf]
    assert tree.order[2] == QueueOrder.FAIR
    assert (tree.user_limit[2], tree.most_running[2]) == (0.5, 20)
    assert tree.amounts(np.array([40.0])).limit[:, 0].tolist() == [40, 32, 32, 32, 8]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", r"queues: .*expected at least one queue"),
        ("{a: {}}", r"queues\.a\.tenants: .*got \[\].*tenants of its own"),
        ("{a: {queues: {}}}", r"queues\.a\.queues: .*at least one queue"),
        ("{a: {tenants: x, queues: {b: {tenants: y}}}}", r"queues\.a\.tenants: .*'x'.*of leaves"),
        ("{a: {order: fair, queues: {b: {tenants: y}}}}", r"queues\.a\.order: .*'fair'.*of leaves"),
        ("{a: {tenants: x}, b: {tenants: [y, x]}}", r"queues\.b\.tenants\[1\]: .*'x'.*it is in 'a' too"),
        ("{default: {tenants: x}}", r"queues\.default\.tenants: .*'x'.*none"),
        (
            "{a: {guarantee: 0.5, tenants: x}, b: {guarantee: 0.6, tenants: y}}",
            r"queues\.b\.guarantee: .*add up to 1\.1",
        ),
        (
            "{a: {guarantee: 0.5, limit: 0.3, tenants: x}}",
            r"queues\.a\.limit: .*0\.3.*at least its guarantee, 0\.5",
        ),
        (
            "{a: {queues: {b: {guarantee: 0.3, tenants: x}}}}",
            r"queues\.a\.queues\.b\.guarantee: .*of 'a' too",
        ),
        (
            "{a: {guarantee: {gpus: -1}, tenants: x}}",
            r"queues\.a\.guarantee\.gpus: .*-1.*greater than or equal",
        ),
        ("{a: {wieght: 2, tenants: x}}", r"queues\.a\.wieght: unknown key.*'weight'"),
        ("{a.b: {tenants: x}}", r"queues\.a\.b: .*pattern"),
        ("[3]", r"queues: .*a table"),
    ],
)
def test_bad_sections_are_refused_by_field_value_and_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=r"f\.yaml: " + message):
        read(text)


def test_tenants_are_known_and_have_a_queue() -> None:
    queues = read("{a: {queues: {b: {tenants: [x, z]}}}}").queues
    assert queues is not None
    errors = [(error.path, error.value) for error in unknown_tenants(queues, ["x", "y"])]
    assert errors == [(("a", "queues", "b", "tenants", 1), "z"), ((), "y")]
    assert [error.value for error in unknown_tenants(queues, ["x", "y"], are_all=False)] == ["y"]
    with_default = read("{a: {tenants: x}, default: {}}").queues
    assert with_default is not None
    assert not list(unknown_tenants(with_default, ["x", "y"]))
