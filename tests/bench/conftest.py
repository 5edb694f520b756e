"""Makes `bench` importable: it lies at the root of the checkout and is no part of the installed package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
