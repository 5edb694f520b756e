"""The wheel is for one Python and platform, and needs the trimtab and numba that made the kernels."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class PlatformWheel(BuildHookInterface):
    """Tags the wheel with the interpreter and the platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling."""
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


class MadeBy(MetadataHookInterface):
    """Depends on exactly what compiled the kernels."""

    def update(self, metadata_of_project: dict[str, Any]) -> None:
        """Called by hatchling."""
        made_by = ("trimtab", "numba", "llvmlite")
        metadata_of_project["dependencies"] = [f"{name}=={metadata.version(name)}" for name in made_by]
