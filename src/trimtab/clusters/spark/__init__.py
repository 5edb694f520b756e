"""Spark: tasks placed by a policy, checked afterwards, and calls over many rows as Spark jobs.

    from trimtab.clusters import spark

    sc = spark.connect("spark://head:7077")
    job = spark.placed(sc, files, policy="least-expected-completion", seconds=sizes, gpus=1)
    print(job.collect(caption), job.deviations())

Spark has no scheduler of tasks that Python could replace. A policy's choice becomes the preferred host of a
task, for which Spark waits (`spark.locality.wait`). It remains a preference, so `Placed` asks Spark's REST
interface where each task really ran.
"""

from trimtab.errors import MissingExtra

try:
    import pyarrow as _pyarrow  # noqa: F401
    import pyspark as _pyspark  # noqa: F401
except ImportError as missing:
    raise MissingExtra("running on Spark needs pyspark", expected="pip install 'trimtab[spark]'") from missing

from trimtab.clusters.spark.arrow_jobs import ArrowCall, arrow_map
from trimtab.clusters.spark.placed_jobs import Deviation, Placed, TaskRun, placed
from trimtab.clusters.spark.spark_driver import connect
from trimtab.clusters.spark.task_recording import record

__all__ = ["ArrowCall", "Deviation", "Placed", "TaskRun", "arrow_map", "connect", "placed", "record"]
