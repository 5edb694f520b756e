"""Dask: a policy that places the tasks of a scheduler, and the workers as a host (extra `dask`)."""

from importlib.util import find_spec

from trimtab.errors import MissingExtra

if find_spec("distributed") is None:
    raise MissingExtra("Dask needs distributed", expected="pip install 'trimtab[dask]'")

from trimtab.clusters.dask.scheduler_plugin import Placement as Placement
