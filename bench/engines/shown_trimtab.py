"""What trimtab can express: tiny programs, as those of the engines in `shown`."""

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.engines.workload import NAPS_S, Counter, nap, overlap


def _fan_out(session: Any) -> str:
    from trimtab.chains import chain, run, stage

    names = stage(lambda count: list(range(count)), name="names")
    double = stage(lambda number: 2 * number, name="double")
    total = stage(lambda numbers: sum(numbers), name="total")

    @chain
    def fan_out(count: int) -> Any:
        return total(double.map(names(count)))

    assert run(fan_out, [4], on="in-process").values() == [12]
    return "a stage returned the list that the next stage was mapped over"


def _actors(session: Any) -> str:
    from trimtab.chains import chain, run, shared, stage

    counter = shared(restart="restored")(Counter)

    @stage(state=[counter])
    def add(number: int) -> int:
        return counter.add()

    @chain
    def adding(number: int) -> Any:
        return add(number)

    assert sorted(run(adding, [1, 2, 3], on="in-process").values()) == [1, 2, 3]
    return "three stages called one object, which counted to 3"


def _nap_chain(**options: Any) -> Any:
    from trimtab.chains import chain, stage

    napping_stage = stage(nap, **options)

    @chain
    def napping(number: int) -> Any:
        return napping_stage(number)

    return napping


def _one_node(slots: int, **capacity: float) -> Any:
    from trimtab.chains import StageNode
    from trimtab.clusters.processes import Processes

    return Processes([StageNode("one", slots=slots, capacity=capacity)])


def _deadlines(session: Any) -> str:
    from trimtab.chains import run

    results = run(_nap_chain(), range(4), on=_one_node(1), deadline_s=2.5 * NAPS_S).wait()
    late = [result for result in results if result.state.value != "done"]
    assert late
    assert all("deadline" in str(result.failure) for result in late), results
    return f"of four inputs that need {4 * NAPS_S:g} s {len(late)} ended at their deadline"


def _priorities(session: Any) -> str:
    from trimtab.chains import Session

    napping = _nap_chain()
    with Session(napping, on=_one_node(1)) as own:
        first = own.run(napping, [0])
        low, high = own.run(napping, [1, 2]), own.run(napping, [3, 4], priority=1)
        first.wait()
        begun = {number: at_s for number, at_s, _ in [*low.values(), *high.values()]}
    assert max(begun[3], begun[4]) < min(begun[1], begun[2]), begun
    return "two inputs that came after two others ran before them"


def _gpu(session: Any) -> str:
    from trimtab.chains import run

    halves = run(_nap_chain(gpu=0.5), range(2), on=_one_node(2, gpu=1)).values()
    more = run(_nap_chain(gpu=0.6), range(2), on=_one_node(2, gpu=1)).values()
    assert overlap(halves)
    assert not overlap(more)
    return "two stages of gpu=0.5 ran at a time on one declared GPU, two of gpu=0.6 one after the other"


def _locality(session: Any) -> str:
    from trimtab.chains import StageNode, chain, run, stage
    from trimtab.clusters.processes import Processes

    @stage(labels={"disk": "near"})
    def where(number: int) -> str:
        return os.environ["TRIMTAB_NODE"]

    @chain
    def placed(number: int) -> Any:
        return where(number)

    nodes = [StageNode("far"), StageNode("near", labels={"disk": "near"})]
    assert set(run(placed, range(4), on=Processes(nodes)).values()) == {"near"}
    return "four stages ran on the node that has the label of their data"


def _restart(session: Any) -> str:
    from trimtab.chains import Session, chain, stage

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")

        @stage
        def noted(number: int) -> int:
            with log.open("a") as file:
                file.write(f"{number}\n")
            time.sleep(0.1 * NAPS_S)
            return number

        @chain
        def noting(number: int) -> Any:
            return noted(number)

        with Session(noting, on=_one_node(1), journal=folder) as own:
            handle = own.run(noting, range(12))
            next(iter(handle))
        before = len(log.read_text().split())
        with Session(noting, on=_one_node(1), journal=folder) as own:
            assert own.resume(handle.id).values() == list(range(12))
        after = len(log.read_text().split())
    assert before < 12
    assert after <= 13, after
    return f"a run was stopped after {before} of 12 stages and resumed: {after - 12} ran twice"


TRIMTAB: Mapping[str, Callable[[Any], str]] = {
    "fan-out": _fan_out,
    "actors": _actors,
    "deadlines": _deadlines,
    "priorities": _priorities,
    "gpu": _gpu,
    "locality": _locality,
    "restart": _restart,
}
