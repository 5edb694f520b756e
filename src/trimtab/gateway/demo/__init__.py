"""Demo backends: real HTTP servers with a known service model, and faults that can be switched on.

`launch(Options(kind="chat", speed=2.0))` starts one as a child process; `launch_demo()` starts the four of
`trimtab serve` without a file.
"""

from trimtab.gateway.demo.children import DemoProcess as DemoProcess
from trimtab.gateway.demo.children import launch as launch
from trimtab.gateway.demo.children import launch_all as launch_all
from trimtab.gateway.demo.children import launch_demo as launch_demo
from trimtab.gateway.demo.children import launched as launched
from trimtab.gateway.demo.options import Options as Options
