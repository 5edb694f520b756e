"""The page says what was measured; the figures of an end by hand."""

from __future__ import annotations

from typing import Any

from bench.ages import without_age
from bench.kube.__main__ import PAGE, RESULTS
from bench.kube.openb import Sample, figures
from bench.kube.page import page
from bench.page_command import saved_figures

from support.kube_objects import api_pod
from support.kubernetes.control_plane import hollow_node

SHARE = "trimtab.io/gpu-milli"


def test_the_page_is_made_of_the_figures() -> None:
    assert page(saved_figures(RESULTS)) == without_age(PAGE)


def test_a_pod_on_no_single_device_is_unplaced_though_it_has_a_node() -> None:
    """Two GPUs: 600 and 600 on one each, 500 fits neither though 800 are left; the last pod has no node."""
    node, status = hollow_node("n", gpus=0, more={SHARE: "2000"})

    def pod(name: str, milli: int, where: str) -> dict[str, Any]:
        return api_pod(name, gpus=0, more={SHARE: str(milli)}, nodeName=where)

    pods = [pod("a", 600, "n"), pod("b", 600, "n"), pod("c", 500, "n"), pod("d", 1000, "")]
    found = figures(Sample([(node, status)], pods), pods)
    assert (found["unplaced"], found["no_device"], found["gpu_pods"]) == (2, 1, 4)
    assert (found["used_percent"], found["free_percent"]) == (60.0, 40.0)
    assert found["stranded_percent"] == 40.0  # 400 + 400 are free, and every kind asks for more than 400
