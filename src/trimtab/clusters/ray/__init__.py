"""Runs stages, and other calls, on a Ray cluster: its own local one, or one at an address."""

from trimtab.errors import MissingExtra

try:
    import ray as _ray  # noqa: F401
except ImportError as missing:
    raise MissingExtra("running on Ray needs Ray", expected="pip install 'trimtab[ray]'") from missing
