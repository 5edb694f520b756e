"""The version: a module of its own, so that inner rooms need not import the front door."""

from typing import Final

__version__: Final = "0.1.0"
