"""The command line: `trimtab --help`."""

from trimtab.cli.app import main

__all__ = ["main"]
