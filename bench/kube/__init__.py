"""trimtab's scheduler beside kube-scheduler, both real, on hollow nodes."""

import sys
from pathlib import Path

# The control plane is the tests' own: `support.kubernetes`
sys.path.append(str(Path(__file__).parents[2] / "tests"))
