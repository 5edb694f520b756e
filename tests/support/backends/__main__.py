"""`python -m support.backends --kind chat|image|speech|video`: one fake backend."""

from __future__ import annotations

import asyncio
import sys

from support.backends.options import from_arguments
from support.backends.process import serve

if __name__ == "__main__":
    try:
        asyncio.run(serve(from_arguments()))
    except OSError as error:
        sys.exit(f"error: {error}")
