"""Runs stages in worker processes of this machine."""

from trimtab.clusters.processes.process_backend import Processes

__all__ = ["Processes"]
