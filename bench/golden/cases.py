"""A golden case: a figure that was published, and how to compute it here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path

DATA = Path(__file__).parents[2].parent / "shared" / "data"


@dataclass(frozen=True)
class Golden:
    study: str
    name: str
    published: float  # nan: nothing was published; the figure stands beside those that were
    run: Callable[[], float]
    tolerance: float = 0.0  # absolute
    is_fast: bool = True  # seconds: continuous integration runs it
    note: str = ""
    extra: str = ""  # of the package that has to be installed for it; "" = none
    is_missed: bool = False  # known not to hold: a test says so, and says when it comes to hold
    # what the authors' program gives, where it was run on the same data; nan: it was not. Then the figure is
    # held to that one, whatever was published
    program: float = nan
    digits: int = 3  # of `program` behind the point

    def holds(self, figure: float) -> bool:
        if not isnan(self.program):
            return round(figure, self.digits) == self.program
        return not abs(figure - self.published) > self.tolerance

    @property
    def kind(self) -> str:
        if not isnan(self.program):
            return "as the program"
        if isnan(self.published):
            return "beside"
        return "exact" if self.tolerance == 0 else f"± {self.tolerance:.3g}"
