"""One colour and dash per policy, the same in every figure.

The colours keep the hues of Okabe & Ito ("Color universal design", 2008), moved until each has a contrast of
at least 3:1 on the light and on the dark page, and any two differ by at least .08 in OKLab with normal sight
and under simulated protanopia, deuteranopia and tritanopia (G. M. Machado et al., IEEE TVCG 15(6), 2009).
A colour stands for the policy that dispatches; a dash tells its orders apart, and a second round of colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

COLOURS: Final = (
    "#1861D5",
    "#B14D23",
    "#009E61",
    "#E763AC",
    "#1798FF",
    "#BA7817",
    "#886062",
    "#6A5D9C",
)
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
NEUTRAL: Final = "#7A7F87"  # of what is no policy, such as the lower bound
PAGE_LIGHT, PAGE_DARK = "#ffffff", "#171a21"  # what figures lie on


@dataclass(frozen=True, slots=True)
class Ink:
    """Colour and dash of a policy."""

    colour: str
    dash: str


def inks(policies: Sequence[str]) -> dict[str, Ink]:
    """Ink of each policy, in the given order."""
    bases = list(dict.fromkeys(_base(policy) for policy in policies))
    used: dict[str, int] = {}
    result = {}
    for policy in policies:
        colour = COLOURS[bases.index(_base(policy)) % len(COLOURS)]
        result[policy] = Ink(colour, DASHES[used.get(colour, 0) % len(DASHES)])
        used[colour] = used.get(colour, 0) + 1
    return result


def _base(policy: str) -> str:
    return policy.partition("+")[0]


def faint(colour: str, opacity_frac: float) -> str:
    """The `#rrggbb` colour with transparency."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity_frac})"
