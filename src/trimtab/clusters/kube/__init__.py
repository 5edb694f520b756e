"""Kubernetes: its API, trimtab as its scheduler or extender, pods as a host or as backends (extra `kube`)."""

from importlib.util import find_spec

from trimtab.errors import MissingExtra

for _name in ("aiohttp", "orjson"):
    if find_spec(_name) is None:
        raise MissingExtra(f"Kubernetes needs {_name}", expected="pip install 'trimtab[kube]'")
