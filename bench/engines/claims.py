"""What each engine can express: yes, partly or no, and where that is from.

`shown`: a tiny program of `bench/engines/shown.py` ran, and the page tells what it saw. `documented`: the
engine's documentation says it, in a sentence that is quoted. `not found`: neither documentation nor interface
has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

FEATURES: Final = {
    "fan-out": "dynamic fan-out",
    "actors": "actors",
    "deadlines": "deadlines",
    "priorities": "priorities",
    "gpu": "fractions of a GPU",
    "locality": "locality",
    "restart": "restart of the driver",
}


class Claim(NamedTuple):
    """A verdict, and the sentence and page that it rests on; without a page, on what was shown."""

    verdict: str
    told: str = ""
    url: str = ""


SHOWN_BY = {  # engine → its program with tiny programs
    "processes": "plain_pool",
    "Ray": "ray_tasks",
    "Dask": "dask_futures",
    "Spark": "spark_rdd",
    "Kubeflow": "kfp_local",
    "Slurm": "slurm_array",
    "trimtab": "trimtab_chain",
}
_YES, _NO = Claim("yes"), Claim("no")
_RAY, _DASK = "https://docs.ray.io/en", "https://distributed.dask.org/en/latest"
_SPARK, _KFP = "https://spark.apache.org/docs/latest", "https://www.kubeflow.org/docs/components/pipelines"
CLAIMS: Final[Mapping[str, Mapping[str, Claim]]] = {
    "processes": {
        "fan-out": _YES,
        "actors": _NO,
        "deadlines": _NO,
        "priorities": _NO,
        "gpu": _NO,
        "locality": _NO,
        "restart": _NO,
    },
    "Ray": {
        "fan-out": _YES,
        "actors": _YES,
        "deadlines": _NO,
        "priorities": _NO,
        "gpu": _YES,
        "locality": _YES,
        "restart": Claim(
            "no",
            "Ray can automatically recover from data loss but not owner failure.",
            f"{_RAY}/latest/ray-core/fault_tolerance/objects.html",
        ),
    },
    "Dask": {
        "fan-out": _YES,
        "actors": _YES,
        "deadlines": _NO,
        "priorities": _YES,
        "gpu": Claim("partly", "Dask does not know what a GPU is", f"{_DASK}/resources.html"),
        "locality": _YES,
        "restart": Claim(
            "no",
            "There is currently no persistence mechanism to record and recover the scheduler state.",
            f"{_DASK}/resilience.html",
        ),
    },
    "Spark": {
        "fan-out": Claim("partly"),
        "actors": _NO,
        "deadlines": _NO,
        "priorities": Claim(
            "partly",
            "Spark includes a fair scheduler to schedule resources within each SparkContext.",
            f"{_SPARK}/job-scheduling.html",
        ),
        "gpu": Claim(
            "yes",
            "Amount requesting as a float to support fractional resource requests.",
            f"{_SPARK}/api/python/reference/api/pyspark.resource.TaskResourceRequest.html",
        ),
        "locality": Claim(
            "yes",
            "How long to wait to launch a data-local task before giving up and launching it on a less-local "
            "node.",
            f"{_SPARK}/configuration.html",
        ),
        "restart": Claim(
            "partly",
            "standalone cluster mode supports restarting your application automatically if it exited with "
            "non-zero exit code",
            f"{_SPARK}/spark-standalone.html",
        ),
    },
    "Kubeflow": {
        "fan-out": _YES,
        "actors": _NO,
        "deadlines": _NO,
        "priorities": _NO,
        "gpu": Claim(
            "no",
            "Local execution does not support specifying resource requests/limits/affinities related to "
            "memory, cores, accelerators, etc.",
            f"{_KFP}/user-guides/core-functions/execute-kfp-pipelines-locally",
        ),
        "locality": _NO,
        "restart": Claim(
            "yes (server)",
            "KFP will reuse the component's outputs if the component is executed again with the same inputs "
            "and parameters",
            f"{_KFP}/user-guides/core-functions/caching/",
        ),
    },
    "Slurm": {
        "fan-out": _YES,
        "actors": _NO,
        "deadlines": _YES,
        "priorities": _YES,
        "gpu": Claim("yes", "Shards of a gpu", "https://slurm.schedmd.com/gres.conf.html"),
        "locality": Claim("partly"),
        "restart": _YES,
    },
    "trimtab": dict.fromkeys(FEATURES, _YES) | {"locality": Claim("partly")},
}
