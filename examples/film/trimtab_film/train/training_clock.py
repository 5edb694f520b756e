"""How far a training is, kept on disk so that it can stop and go on."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

SAVE_EVERY_CPU_S = 120.0


class HasState(Protocol):
    """An optimiser, or several."""

    def state_dict(self) -> Any:
        """Give its state."""

    def load_state_dict(self, state: Any) -> Any:
        """Take a state."""


class Clock:
    """Counts steps and processor seconds towards a budget: a busy machine trains as well as an idle one."""

    def __init__(self, budget_cpu_s: float, used_cpu_s: float = 0.0, steps: int = 0) -> None:
        self.budget_cpu_s, self.steps = budget_cpu_s, steps
        self.kept_cpu_s = used_cpu_s
        self.begin_cpu_s = time.process_time() - used_cpu_s
        self.next_save_cpu_s = used_cpu_s + SAVE_EVERY_CPU_S
        self.errors: list[float] = []

    def restart(self) -> None:
        """Leave out what was used since the clock was made, such as for drawing."""
        self.begin_cpu_s = time.process_time() - self.kept_cpu_s

    def used_cpu_s(self) -> float:
        """Return the processor seconds used so far."""
        return time.process_time() - self.begin_cpu_s

    def done(self) -> bool:
        """Tell whether the budget is used up."""
        return self.used_cpu_s() >= self.budget_cpu_s

    def decay(self, warm_steps: int) -> float:
        """Return the part of the learning rate: a rise, then half a cosine down to a fiftieth."""
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.used_cpu_s() / self.budget_cpu_s)))
        return min(1.0, (self.steps + 1) / warm_steps) * (0.02 + 0.98 * cosine)

    def tick(self, name: str, error: float) -> bool:
        """Count a step, report every fifty; tell whether it is time to save."""
        self.steps += 1
        self.errors.append(error)
        if self.steps % 50 == 0:
            recent = sum(self.errors) / len(self.errors)
            self.errors.clear()
            used = f"{self.used_cpu_s():.0f}/{self.budget_cpu_s:.0f} CPU s"
            print(f"{name}: step {self.steps}, {used}, error {recent:.4f}", flush=True)
        if self.used_cpu_s() < self.next_save_cpu_s:
            return False
        self.next_save_cpu_s = self.used_cpu_s() + SAVE_EVERY_CPU_S
        return True


def save_state(path: Path, model: nn.Module, optimiser: HasState, clock: Clock) -> None:
    """Write a training's state in one step, so that a stop while writing loses nothing."""
    state = {
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "used_cpu_s": clock.used_cpu_s(),
        "steps": clock.steps,
    }
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def load_state(path: Path, model: nn.Module, optimiser: HasState, budget_cpu_s: float) -> Clock:
    """Take up a training where it stopped, or begin it."""
    if not path.exists():
        return Clock(budget_cpu_s)
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    return Clock(budget_cpu_s, state["used_cpu_s"], state["steps"])
