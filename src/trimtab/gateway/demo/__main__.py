"""`python -m trimtab.gateway.demo`: the demonstration's nodes, until standard input ends."""

import asyncio

from trimtab.gateway.demo.demo_nodes import serve_nodes

if __name__ == "__main__":
    asyncio.run(serve_nodes())
