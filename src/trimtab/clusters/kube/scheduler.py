"""trimtab as a scheduler of Kubernetes: it binds the pods of its name to nodes that a policy chooses.

It owes users what kube-scheduler gives: it never binds more than a node offers by what it has seen, it says
why a pod waits, and of several copies one is active. What it chose counts as taken before the server has
confirmed it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from trimtab.clusters.kube.api import CONFLICT, NOT_FOUND, KubeApi, Pause
from trimtab.clusters.kube.feasibility import Feasibility
from trimtab.clusters.kube.gangs import GangKey, PodGroups, gang_of, least_of
from trimtab.clusters.kube.lease import Lease
from trimtab.clusters.kube.mirror import Listener, Mirror
from trimtab.clusters.kube.notices import Notices
from trimtab.clusters.kube.objects import KUBERNETES, Pod, PodPlace, Terms, binding
from trimtab.clusters.kube.preemption import Preempting, Preemption
from trimtab.clusters.placement.policy_choice import PolicyChoice
from trimtab.domain.policy import Decider
from trimtab.errors import ApiRefused, ClusterLost

_AGAIN_S: Final = 30.0  # then pods that wait are looked at even if nothing has changed
_HELD_S: Final = 0.25  # and pods that the policy holds after this
_PER_TURN: Final = 4  # decisions between two turns of other tasks
_MOST_KINDS: Final = 1000  # of pods that did not fit, remembered
_BINDINGS: Final = 4  # under way at once

logger = logging.getLogger(__name__)


class Scheduler(Listener):
    """Binds pods of one scheduler name. `run` never ends."""

    def __init__(
        self,
        api: KubeApi,
        decider: Decider,
        *,
        name: str = "trimtab",
        lease: Lease | None = None,
        preempts: bool = False,
        seed: int = 0,
        tell: Callable[[float], None] = lambda bind_s: None,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """`tell` hears the seconds of a binding, `begun` that this copy is active and knows the cluster."""
        self._begun = begun
        self._api, self._name, self._lease, self._tell = api, name, lease, tell
        self.mirror = Mirror(api)
        self.ledger = self.mirror.ledger
        self._feasible = Feasibility(self.ledger)
        self._choice = PolicyChoice(decider, self.ledger, KUBERNETES, seed=seed)
        self.degraded = self._choice.degraded
        self._has_order = decider.order.orders()
        self._label = decider.label
        self._notices = Notices(api, name, lambda: bool(self._tasks))
        self._groups = PodGroups(api)
        self._preemption = Preemption(api, self.ledger, self._feasible) if preempts else None
        self._pending: dict[str, Pod] = {}  # uid → of this scheduler, not bound
        self._full: dict[tuple[Terms, frozenset[tuple[str, int]]], tuple[int, str]] = {}
        self._keys: dict[str, float] = {}  # uid → by which it waits
        self._tried: dict[str, int] = {}  # uid → changes of the cluster that its last try had seen
        self._changes = 0
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_BINDINGS)
        self._evicting: dict[str, Preempting] = {}  # uid → with whom it is bound once others have left
        self.mirror.listeners.append(self)
        self._groups.changed = self.room_came

    async def run(self) -> None:
        """Schedule, for ever.

        Raises ApiRefused where the server refuses a right that is needed, ClusterLost where another copy has
        taken the Lease meanwhile: what it has bound is seen by a copy that begins anew.
        """
        async with asyncio.TaskGroup() as tasks:
            if self._lease is not None:
                tasks.create_task(self._lease.run())
                await self._lease.held.wait()  # what follows is seen after any other copy has stopped
            tasks.create_task(self.mirror.run())
            tasks.create_task(self._groups.run())
            tasks.create_task(self._notices.run())
            await self.mirror.synced()
            self._begun()
            while True:
                wait_s = await self._pass()
                if self._lease is not None and self._lease.other:
                    raise ClusterLost(f"{self._lease.other} holds the Lease {self._lease.name} now")
                try:
                    async with asyncio.timeout(wait_s):  # `wait_for` loses cancellations before 3.12
                        await self._wake.wait()
                except TimeoutError:
                    self._changes += 1
                self._wake.clear()

    # What the mirror tells.

    def room_came(self) -> None:
        """Look again at the pods that wait."""
        self._changes += 1
        self._wake.set()

    def pod_changed(self, pod: Pod, before: Pod | None) -> None:
        """Note a pod that waits, or that is bound now."""
        if pod.scheduler == self._name and not pod.node_name and not pod.is_ending:
            self._pending[pod.uid] = pod
        else:
            self._pending.pop(pod.uid, None)
        if pod.node_name:
            self._choice.placed(pod, pod.node_name)
            self._forget(pod.uid)
            if before is None or not before.node_name:
                self._wake.set()  # a gang may have been bound by another
        elif before is None or pod != before:
            if before is not None and (pod.needs, pod.terms) != (before.needs, before.terms):
                self._tried.pop(pod.uid, None)
            self._wake.set()

    def pod_gone(self, pod: Pod) -> None:
        """Forget a pod."""
        self._forget(pod.uid)
        self._choice.ended(pod.uid)
        if (found := self._evicting.get(pod.uid)) is not None:
            self._give_up(found)

    def node_changed(self, name: str) -> None:
        """Tell the pods on a node that is gone."""
        if name in self.ledger.index:
            return
        for found in list(self._evicting.values()):
            if any(place.node_name == name for place in found.places):
                self._give_up(found)
        for uid in [uid for uid, held in self.ledger.held.items() if held.node_name == name]:
            pod = self.ledger.held[uid].workload
            if pod.scheduler == self._name:
                self._notices.event(
                    pod, "Warning", "NodeGone", f"node {name} was deleted; the pod is bound to it"
                )

    def _forget(self, uid: str) -> None:
        self._pending.pop(uid, None)
        self._keys.pop(uid, None)
        self._tried.pop(uid, None)
        self._notices.forget(uid)

    # Decisions.

    def _may_act(self) -> bool:
        return self.mirror.is_current and (self._lease is None or self._lease.is_active())

    def _waiting(self) -> list[Pod]:
        """Pods to decide about, most urgent first."""
        held = self.ledger.held
        pods = [pod for uid, pod in self._pending.items() if uid not in held]
        for pod in pods:
            if pod.uid not in self._keys:
                self._keys[pod.uid] = self._choice.key(pod) if self._has_order else pod.created_s
        pods.sort(key=lambda pod: (-pod.priority, self._keys[pod.uid], pod.created_s, pod.full_name))
        return pods

    async def _pass(self) -> float:
        """Decide about all pods that wait; returns the seconds after which to look again."""
        self._bind_after_eviction()
        if len(self._full) > _MOST_KINDS:
            self._full.clear()
        gangs: dict[GangKey, list[Pod]] = {}
        units: list[tuple[GangKey | None, list[Pod]]] = []
        for pod in self._waiting():
            key = gang_of(pod)
            if key is None:
                units.append((None, [pod]))
            elif key in gangs:
                gangs[key].append(pod)
            else:
                gangs[key] = [pod]
                units.append((key, gangs[key]))
        if gangs:  # rests of begun gangs come first
            begun = {
                key for holding in self.ledger.held.values() if (key := gang_of(holding.workload)) in gangs
            }
            units.sort(key=lambda unit: unit[0] not in begun)
        wait_s, changes = _AGAIN_S, self._changes
        for i, (key, pods) in enumerate(units):
            if not self._may_act():
                return _HELD_S
            if any(self._tried.get(pod.uid) != self._changes for pod in pods):
                is_held = self._decide_gang(key, pods) if key is not None else self._decide_one(pods[0])
                wait_s = min(wait_s, _HELD_S) if is_held else wait_s
            if i % _PER_TURN == _PER_TURN - 1:
                await asyncio.sleep(0)
        return 0.0 if changes != self._changes else wait_s

    def _is_waiting(self, pod: Pod) -> bool:
        """Whether a pod still waits: it may have changed while others were decided about."""
        return pod.uid in self._pending and pod.uid not in self.ledger.held

    def _decide_one(self, pod: Pod) -> bool:
        """Bind a pod, or say why not; returns whether the policy holds it though nodes could take it."""
        if not self._is_waiting(pod):
            return False
        chosen, why = self._choose(pod)
        if chosen is not None:
            self._start(chosen)
            return False
        self._tried[pod.uid] = self._changes
        self._notices.unschedulable(pod, why + self._preempt({pod.uid: why}, [pod], 1, []))
        return why.startswith(self._label)

    def _decide_gang(self, key: GangKey, pods: Sequence[Pod]) -> bool:
        """Bind enough pods of a gang, or none."""
        pods = [pod for pod in pods if self._is_waiting(pod)]
        if not pods:
            return False
        bound = [
            h.workload
            for h in self.ledger.held.values()
            if gang_of(h.workload) == key and not h.workload.is_ending
        ]
        least = least_of(key, [*bound, *pods], self._groups)
        why, chosen = "", list[PodPlace]()
        if least is None:
            where = self._groups.served or "scheduling.k8s.io, scheduling.x-k8s.io"
            why = f"PodGroup {key.name} is not there ({where})"
        elif len(bound) + len(pods) < least:
            why = f"gang {key.name} has {len(bound) + len(pods)} of at least {least} pods"
        elif any(pod.uid in self._evicting for pod in bound):
            why = f"gang {key.name} waits until pods that it preempts have left"
        else:
            whys: dict[str, str] = {}
            for pod in pods:
                found, whys[pod.uid] = self._choose(pod)
                if found is not None:
                    chosen.append(found)
                    self._assume(found)
            if len(bound) + len(chosen) < least:
                refused = next(reason for reason in whys.values() if reason)
                fit = len(bound) + len(chosen)
                told = self._preempt(whys, pods, least - fit, chosen)
                if not told:
                    for each in chosen:
                        self._drop(each.workload)
                    self._full.clear()  # found out beside those that have been dropped
                why = f"gang {key.name}: {fit} of at least {least} pods fit; the next: {refused}{told}"
                chosen = []
        placed = {each.workload.uid for each in chosen}
        for each in chosen:
            self._begin_binding(each)
        for pod in pods:
            if pod.uid not in placed:
                self._tried[pod.uid] = self._changes
                self._notices.unschedulable(pod, why or whys[pod.uid])
        return False

    def _choose(self, pod: Pod) -> tuple[PodPlace | None, str]:
        """The policy's choice, or why there is none."""
        if pod.refusal:
            return None, pod.refusal
        alike, looks_around = (pod.terms, frozenset(pod.needs.items())), self._feasible.looks_around(pod)
        tried, why = self._full.get(alike, (-1, ""))
        if tried == self._changes and not looks_around:
            return None, why  # room has only become less since one like it did not fit
        able = self._feasible.mask(pod)
        if not able.any():
            why = self._feasible.summary(pod)
            if not looks_around:
                self._full[alike] = self._changes, why
            return None, why
        ranked = self._choice.rank(pod, able)
        if not ranked:
            return None, f"{self._label} holds it: {int(able.sum())} nodes could take it"
        node_name = self.ledger.nodes[ranked[0]].name
        return PodPlace(pod, node_name, self.ledger.choose_devices(pod, node_name)), ""

    # Bindings.

    def _assume(self, chosen: PodPlace) -> None:
        self.ledger.hold(chosen.workload, chosen.node_name, chosen.devices, is_assumed=True)
        self._choice.placed(chosen.workload, chosen.node_name)

    def _drop(self, pod: Pod) -> None:
        self.ledger.release(pod.uid)
        self._choice.ended(pod.uid)

    def _start(self, chosen: PodPlace) -> None:
        self._assume(chosen)
        self._begin_binding(chosen)

    def _begin_binding(self, chosen: PodPlace) -> None:
        self._notices.forget(chosen.workload.uid)
        self._spawn(self._bind(chosen))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a binding failed", exc_info=error)

    async def _bind(self, chosen: PodPlace) -> None:
        """Bind a pod. Where the server is gone the pod keeps its place until it answers again."""
        pod, pause = chosen.workload, Pause()
        while True:
            if chosen.node_name not in self.ledger.index:
                self._failed(pod, f"node {chosen.node_name} has gone since it was chosen")
                return
            if self._lease is not None and not self._lease.is_active():
                self._drop(pod)
                return
            try:
                async with self._slots:
                    begun_s = time.monotonic()
                    body = binding(pod.name, pod.uid, chosen.node_name, chosen.devices)
                    await self._api.post(_path(pod) + "/binding", body)
                break
            except ClusterLost as error:
                logger.warning("binding %s: %s", pod.full_name, error)
                await pause.wait()
            except ApiRefused as error:
                if error.status >= 500 or error.status == 429:
                    await pause.wait()
                    continue
                if error.status == CONFLICT and await self._is_bound_so(chosen):
                    break  # by the call whose answer was lost
                self._failed(pod, "" if error.status in (NOT_FOUND, CONFLICT) else str(error))
                return
        self._tell(time.monotonic() - begun_s)
        message = f"Successfully assigned {pod.full_name} to {chosen.node_name}"
        self._notices.event(pod, "Normal", "Scheduled", message)

    async def _is_bound_so(self, chosen: PodPlace) -> bool:
        try:
            found = await self._api.get(_path(chosen.workload))
        except (ApiRefused, ClusterLost):
            return False
        is_same = found["metadata"]["uid"] == chosen.workload.uid
        return bool(is_same and found["spec"].get("nodeName") == chosen.node_name)

    def _failed(self, pod: Pod, why: str) -> None:
        """A pod was not bound: it waits again, unless the mirror says that it is gone or another's."""
        held = self.ledger.held.get(pod.uid)
        if held is not None and held.is_assumed:
            self._drop(pod)
        if why:
            self._notices.event(pod, "Warning", "FailedScheduling", why)
        self.room_came()

    # Preemption.

    def _preempt(
        self, whys: Mapping[str, str], pods: Sequence[Pod], count: int, beside: Sequence[PodPlace]
    ) -> str:
        """Evict others so that so many more of these pods fit `beside` the places of their gang.

        All take their places at once, and are bound once the others are gone. Returns what is told of it;
        "" = nobody is evicted. `whys`: uid → why a pod does not fit; "" = it has a place.
        """
        able = [
            pod
            for pod in pods
            if (why := whys[pod.uid]) and pod.preempts and not pod.refusal and not why.startswith(self._label)
        ]
        found = self._preemption.find(able, count) if self._preemption else None
        if found is None:
            return ""
        told = f" Preempting {', '.join(victim.full_name for victim in found.victims)}."
        there = []
        for victim in found.victims:
            if (waiting := self._evicting.get(victim.uid)) is not None:
                self._give_up(waiting)
            if victim.uid in self.ledger.held:
                there.append(victim)
        found = Preempting((*beside, *found.places), tuple(there))
        for place in found.places:
            self._assume(place)
            self._evicting[place.workload.uid] = found
        self._spawn(self._evict(found))
        return told

    async def _evict(self, found: Preempting) -> None:
        assert self._preemption is not None
        pod = found.places[0].workload
        victims = [victim for victim in found.victims if not victim.is_ending]
        why = await self._preemption.evict_all(victims, tries=True)
        if why := why or await self._preemption.evict_all(victims, tries=False):
            self._notices.event(pod, "Warning", "FailedPreemption", why)
            self._give_up(found)
            for place in found.places:  # not at once: it would be refused again
                self._tried[place.workload.uid] = self._changes
            return
        for victim in victims:
            self._notices.event(victim, "Normal", "Preempted", f"by {pod.full_name}", "Preempting")

    def _give_up(self, found: Preempting) -> None:
        for place in found.places:
            if self._evicting.pop(place.workload.uid, None) is not None:
                self._drop(place.workload)
        self.room_came()

    def _bind_after_eviction(self) -> None:
        index, held = self.ledger.index, self.ledger.held
        for found in {id(each): each for each in self._evicting.values()}.values():
            if any(place.node_name not in index for place in found.places):
                self._give_up(found)
            elif all(self.ledger.is_kept(index[place.node_name]) for place in found.places) and not any(
                victim.uid in held for victim in found.victims
            ):
                for place in found.places:
                    del self._evicting[place.workload.uid]
                    self._begin_binding(place)


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
