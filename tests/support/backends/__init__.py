"""Fake backends: real HTTP servers with a known service model, and faults that can be switched on.

`launch(Options(kind="chat", speed=2.0))` starts one as a child process.
"""

from support.backends.children import BackendProcess as BackendProcess
from support.backends.children import end_process as end_process
from support.backends.children import launch as launch
from support.backends.children import launch_all as launch_all
from support.backends.children import launched as launched
from support.backends.options import Options as Options
