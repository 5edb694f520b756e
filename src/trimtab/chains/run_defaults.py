"""Defaults of runs. This module loads nothing."""

from __future__ import annotations

from typing import Final

DEFAULT_POLICY: Final = "downstream-aware(priority_s=60,urgent_s=3600)"
FUSED_S: Final = 0.005  # expected service below which stages run in one attempt
