"""Versions of trimtab and of the libraries that results depend on: a leaf that every room may import."""

from typing import Final

__version__: Final = "0.1.0"


def versions() -> dict[str, str]:
    """Versions that results depend on."""
    import platform
    from importlib.metadata import version

    libraries = {name: version(name) for name in ("trimtab", "numba", "numpy", "polars")}
    return {"python": platform.python_version(), **libraries}
