"""The demonstration of `trimtab serve`: nodes of unequal speed, one of which fails now and then."""

from trimtab.gateway.demo.demo_nodes import DEMO_NODES as DEMO_NODES
from trimtab.gateway.demo.demo_nodes import DemoNode as DemoNode
from trimtab.gateway.demo.demo_nodes import running_nodes as running_nodes
