"""Code for workers on other machines: what those can't import goes along by value."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import cloudpickle

from trimtab.live.stage_backend import StageCode
from trimtab.live.stage_execution import Imported
from trimtab.live.value_codec import decode, pickled


def by_value(code: StageCode) -> StageCode:
    """The same stage with its modules, if they are not installed but lie beside the user's program."""
    found = decode(code.code)
    if not isinstance(found, Imported):
        return code
    target = found.resolve()
    home = _folder(sys.modules.get(found.module))
    if home is None:
        return code
    beside = {m.__name__: m for m in list(sys.modules.values()) if _is_under(_folder(m), home)}
    beside.pop("__main__", None)  # goes by value anyway
    with _by_value(list(beside.values())):
        return replace(code, code=pickled(target))


def _folder(module: ModuleType | None) -> Path | None:
    """The folder of a module that no package manager has installed; None for all others."""
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__.partition(".")[0] == "trimtab":
        return None
    path = Path(file).absolute()
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    if any(path.is_relative_to(folder) for folder in installed):
        return None
    depth = module.__name__.count(".") + (path.name == "__init__.py")
    return path.parents[depth]


def _is_under(folder: Path | None, home: Path) -> bool:
    return folder is not None and folder.is_relative_to(home)


@contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
