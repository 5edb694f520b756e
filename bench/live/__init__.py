"""Policies in the gateway over real backends, beside what the simulator predicted."""

import sys
from pathlib import Path

# The fake servers are the tests' own: `support.backends`
sys.path.append(str(Path(__file__).parents[2] / "tests"))
