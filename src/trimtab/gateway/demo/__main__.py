"""`python -m trimtab.gateway.demo --kind chat|image|speech|video`: one demo backend."""

from __future__ import annotations

import asyncio
import sys

from trimtab.gateway.demo.options import from_arguments
from trimtab.gateway.demo.process import serve

if __name__ == "__main__":
    try:
        asyncio.run(serve(from_arguments()))
    except OSError as error:
        sys.exit(f"error: {error}")
