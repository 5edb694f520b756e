"""Names what to install where a package is missing."""

from __future__ import annotations

from importlib.util import find_spec

from trimtab.errors import MissingExtra


def require(extra: str, what: str, *modules: str) -> None:
    """Raise MissingExtra if one of the modules is not installed. `extra` is this package's; "" = none."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        package = f"'./examples/film[{extra}]'" if extra else "./examples/film"
        expected = f"pip install {package}, in trimtab's checkout"
        raise MissingExtra(f"{what} needs {', '.join(missing)}", expected=expected)
