"""Stages with limits: an instance that may not begin yet is put back until its turn comes."""

from __future__ import annotations

from trimtab.chains.host_state import HostState
from trimtab.chains.limits import StageLimit
from trimtab.chains.plan import PlannedStep
from trimtab.chains.run_progress import Instance
from trimtab.chains.run_state import ItemRun

_Waiter = tuple[ItemRun, Instance]  # of a batch, the one that takes the others with it


class LimitedStages:
    """The limits of all stages that have some."""

    def __init__(self, host: HostState) -> None:
        self._host = host
        self._limits: dict[str, StageLimit[_Waiter]] = {
            step.code_name: StageLimit(options.concurrency, options.rate_per_s)
            for step in host.steps
            if (options := step.stage.stage_options).concurrency or options.rate_per_s
        }

    def holds_back(self, item: ItemRun, at: Instance) -> bool:
        """Whether an instance that the loop has started may not begin. Then it is started again later."""
        limit, now_s = self._limits.get(item.run.plan.steps[at.step].code_name), self._host.now_s()
        if limit is None:
            return False
        begins = limit.begin((item, at), now_s)
        if not begins:
            self._host.loop.runs.lose(item.row(at), now_s, float("inf"))
            self._host.wake()
        self._offer(limit)  # under a rate, the next one has its time only now
        return not begins

    def pass_by(self, item: ItemRun, at: Instance) -> None:
        """An instance does not begin, though its turn may have come: another takes it."""
        if (limit := self._limits.get(item.run.plan.steps[at.step].code_name)) is not None:
            limit.forget([(item, at)])
            self._offer(limit)

    def end(self, step: PlannedStep) -> None:
        """An attempt at a stage is over: another may begin in its place."""
        if (limit := self._limits.get(step.code_name)) is not None:
            limit.end()
            self._offer(limit)

    def end_run(self, item: ItemRun) -> None:
        """A run is over. Others take the turns that its instances had."""
        for k, step in enumerate(item.run.plan.steps if self._limits else ()):
            if (limit := self._limits.get(step.code_name)) is not None:
                limit.forget((item, at) for at in item.progress.instances(k))
                self._offer(limit)

    def _offer(self, limit: StageLimit[_Waiter]) -> None:
        now_s = self._host.now_s()
        for (item, at), from_s in limit.turns(lambda waiter: self._host.is_waiting(*waiter)):
            self._host.loop.runs.offer(item.row(at), max(now_s, from_s))
            self._host.wake()
