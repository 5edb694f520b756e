"""The handling of an attempt's outcome: results, successors that become ready, further attempts, failures."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trimtab.chains.host_state import GIB, HostState
from trimtab.chains.run_endings import RunEndings, log_failure
from trimtab.chains.run_progress import Mismatch, Output, Presence, StageInstance, unpacked
from trimtab.chains.run_state import ChainRun, Ended, Failure, ItemRun
from trimtab.chains.stage_profiles import StageProfiles
from trimtab.engine.layout import NOTHING_TO_DO, SKIPPED
from trimtab.live.model_scope import ModelRecord
from trimtab.live.stage_backend import Cause, Outcome, StageError

if TYPE_CHECKING:
    from trimtab.chains.run_metrics import StageMetrics

MAX_LOSSES = 8  # attempts of an instance that may be lost with their workers
_LOST = (Cause.WORKER_LOST, Cause.INPUT_LOST)
_OF_WORKER = (
    Cause.TIMEOUT,
    Cause.OUT_OF_MEMORY,
    Cause.MEMORY_LIMIT,
)  # of several stages that ran there, any may be to blame
_FINAL = (
    Cause.UNSERIALISABLE,
    Cause.LOAD_FAILED,
    Cause.PERMANENT,
    Cause.MEMORY_LIMIT,
)  # another attempt would end alike


class StageOutcomes:
    """Takes in outcomes. What follows from them it tells the loop.

    Args:
        metrics: counts them; None = nothing does.
    """

    def __init__(self, host: HostState, endings: RunEndings, seed: int, metrics: StageMetrics | None) -> None:
        self._host, self._endings, self._jitter = host, endings, random.Random(seed)
        self._metrics = metrics
        self.profiles = StageProfiles()
        self.models: dict[str, list[ModelRecord]] = {}  # optimised ones, by stage

    def take(self, ended: Ended) -> None:
        """An attempt that a caller waits for has ended."""
        self._note(ended)
        if ended.is_retried:
            return
        item, at, outcome = ended.item, ended.at, ended.outcome
        if outcome.error is not None:
            self._fail(ended, outcome.error)
            return
        host, output = self._host, self._keep(ended)
        host.loop.add_cost(item.run.options.tenant, outcome.service_s, item.row(at))
        if self._take_in(item, at, output):
            host.loop.runs.complete(item.row(at), host.now_s(), output.whole.size_bytes / GIB)

    def settle(self, item: ItemRun, ready: list[StageInstance]) -> None:
        """Skip or answer the instances that became ready, and in turn those that this makes ready."""
        runs = self._host.loop.runs
        while ready:
            at = ready.pop()
            counts = item.run.counts[at.step]
            if (presence := item.progress.presence(at)) is not Presence.PRESENT:
                is_left_out = presence is Presence.EMPTY
                runs.skip(item.row(at), NOTHING_TO_DO if is_left_out else SKIPPED)
                counts.skipped += 1
                ready += item.progress.done(at, None, is_left_out=is_left_out)
            elif (output := self._served(item, at) or self._known(item, at)) is not None:
                runs.answer(item.row(at), output.whole.size_bytes / GIB)
                if not self._expand_all(item, at, output):
                    return
                ready += item.progress.done(at, output)
            else:
                counts.queued += 1
                self._host.arrived[item.run.chain.steps[at.step].code_name] += 1

    def _note(self, ended: Ended) -> None:
        """Count an outcome, and log a failure."""
        item, outcome = ended.item, ended.outcome
        stage = item.run.chain.steps[ended.at.step].name
        if self._metrics is not None:
            self._metrics.note(ended.attempt.stage, outcome)
        if outcome.profile:
            self.profiles.add(stage, outcome.profile)
        if outcome.models:
            self._note_models(item.run, stage, outcome.models)
        if outcome.error is not None:
            log_failure(item, ended.at, ended.attempt, self._host.loop.node_names[ended.node], outcome.error)

    def _note_models(self, run: ChainRun, stage: str, records: Sequence[ModelRecord]) -> None:
        known = self.models.setdefault(stage, [])
        known += [r for r in records if all((r.model, r.how) != (k.model, k.how) for k in known)]
        if self._host.recorder is not None:
            self._host.recorder.note_models(run.id, stage, records)

    def _keep(self, ended: Ended) -> Output:
        """Note the result of an attempt; that of the one which followed it waits until its turn comes."""
        item, at, attempt, node, outcome, _ = ended
        host, output = self._host, _output_of(outcome)
        c, size_gib = host.class_of(item.run.chain.steps[at.step]), output.whole.size_bytes / GIB
        host.loop.costs.learn(c, node, item.sizes[at.step], outcome, size_gib)
        counts = item.run.counts[at.step]
        counts.done += 1
        counts.busy_s += outcome.service_s
        item.refs += output.refs
        host.refs.hold(output.refs)
        self._endings.tell_part(item, at, output)
        if host.recorder is not None:
            host.recorder.note_result(item, at, attempt, host.loop.node_names[node], output, outcome)
        if outcome.then is not None and attempt.then is not None and (after := item.after(at)) is not None:
            item.served[after] = Ended(item, after, attempt.then.attempt, node, outcome.then)
        return output

    def _served(self, item: ItemRun, at: StageInstance) -> Output | None:
        """The output of a ready instance that was served behind another one, in its attempt."""
        if (served := item.served.get(at)) is None or served.outcome.error is not None:
            return None  # an error is taken in when the loop starts it
        del item.served[at]
        self._note(served)
        self._host.loop.add_cost(item.run.options.tenant, served.outcome.service_s)
        self._memo_key(item, at)
        return self._keep(served)

    def _take_in(self, item: ItemRun, at: StageInstance, output: Output | None) -> bool:
        """An instance is over: tell its successors. False if its run fails by it."""
        if output is not None and not self._expand_all(item, at, output):
            return False
        self.settle(item, item.progress.done(at, output))
        return True

    def _expand_all(self, item: ItemRun, at: StageInstance, output: Output) -> bool:
        """The maps over lists of an output have as many instances. False if its run fails by it."""
        try:
            for step, count in item.progress.counts_from(at.step, output) if output.splits else ():
                self._expand(item, step, count)
        except Mismatch as error:
            self._fail_run(item, at, StageError(Cause.RAISED, "ValueError", str(error)))
            return False
        return True

    def _expand(self, item: ItemRun, step: int, count: int) -> None:
        host, planned = self._host, item.run.chain.steps[step]
        host.loop.costs.learn_count(host.class_of(planned), count)
        moved = host.loop.runs.expand(item.place, item.run.template, step, count)
        if moved is None:
            raise Mismatch(f"{planned.name} has {count} instances, more than there is room for")
        item.progress.expand(step, count)
        for member, first_row in moved:
            item.first_rows[member] = first_row
            host.own(item, member, max(1, count))

    def _known(self, item: ItemRun, at: StageInstance) -> Output | None:
        """The output of a ready instance from the journal: of this run, or of an equal call."""
        recorder = self._host.recorder
        if recorder is None:
            return None
        if (output := item.run.known.pop((item.number, at), None)) is None:
            found = recorder.memo.find(self._memo_key(item, at))
            if found is None:
                return None
            output = unpacked(found)
        counts = item.run.counts[at.step]
        counts.done += 1
        counts.reused += 1
        self._endings.tell_part(item, at, output)
        return output

    def _memo_key(self, item: ItemRun, at: StageInstance) -> str:
        """Under which the result of a ready instance may be kept; "" = it is not."""
        recorder, step = self._host.recorder, item.run.chain.steps[at.step]
        if recorder is None or not step.stage.stage_options.deterministic:
            return ""
        key = item.memo_keys[at] = recorder.memo.key(step, self._host.arguments(item, at))
        return key

    def _fail(self, ended: Ended, error: StageError) -> None:
        item, at = ended.item, ended.at
        options = item.run.chain.steps[at.step].stage.stage_options
        is_lost = error.cause in _LOST or (ended.attempt.then is not None and error.cause in _OF_WORKER)
        raised = item.raised.get(at, 0) + (not is_lost)
        item.raised[at] = raised
        is_last = item.tried[at] - raised >= MAX_LOSSES if is_lost else raised > options.retries
        if (error.cause in _FINAL and not is_lost) or is_last:
            self._give_up(item, at, error)
            return
        item.run.counts[at.step].retries += 1
        item.run.counts[at.step].queued += 1
        wait_s = 0.0
        if not is_lost:
            longest_s = min(options.backoff_max_s, options.backoff_s * 2.0 ** (raised - 1))
            wait_s = longest_s * (0.5 + 0.5 * self._jitter.random())
        now_s = self._host.now_s()
        self._host.loop.runs.lose(item.row(at), now_s, now_s + wait_s)

    def _give_up(self, item: ItemRun, at: StageInstance, error: StageError) -> None:
        """An instance gets no further attempt. Its run fails, or goes on without it."""
        step = item.run.chain.steps[at.step]
        item.run.counts[at.step].failed += 1
        item.failure = Failure(step.name, at.idx, item.tried[at], error)
        on_failure = step.stage.stage_options.on_failure
        if on_failure == "default":
            self._take_in(item, at, Output(self._host.defaults[step.code_name]))
        elif on_failure == "skip":
            self.settle(item, item.progress.done(at, None, is_left_out=step.is_map))
        self._host.loop.runs.give_up(item.row(at), self._host.now_s())

    def _fail_run(self, item: ItemRun, at: StageInstance, error: StageError) -> None:
        step = item.run.chain.steps[at.step]
        item.failure = Failure(step.name, at.idx, item.tried.get(at, 0), error)
        self._host.loop.runs.abort(item.place, self._host.now_s())


def _output_of(outcome: Outcome) -> Output:
    """The outputs by split list."""
    rest = iter(outcome.outputs[1:])
    splits = tuple(tuple(itertools.islice(rest, count)) for count in outcome.fan_out)
    return Output(outcome.outputs[0], splits, outcome.tests)
