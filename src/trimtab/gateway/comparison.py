"""The shadow policy beside the live one: what is shown of the two, and what produces it."""

from __future__ import annotations

import asyncio
from typing import Any

from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.decide.alternation import Alternation
from trimtab.gateway.decide.dispatcher import Decider
from trimtab.gateway.record.recorder import Recorder
from trimtab.gateway.record.replays import Replays


class Comparison:
    """Three figures that are never one number, and with a switchback a fourth, which measures."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: GatewayConfig,
        decider: Decider,
        recorder: Recorder | None,
    ) -> None:
        self._loop, self._config, self._decider = loop, config, decider
        self.replays = None if recorder is None else Replays(recorder, self._replayed_policies)
        self.alternation = self._new_alternation()

    def start(self) -> None:
        """Begin to replay, and to take turns."""
        if self.replays is not None:
            self.replays.start()
        if self.alternation is not None:
            self.alternation.start()

    async def close(self) -> None:
        """No task and no timer is left."""
        if self.replays is not None:
            await self.replays.close()
        if self.alternation is not None:
            self.alternation.close()

    def reload(self, config: GatewayConfig) -> bool:
        """Go on with another configuration; True: the observers are others now."""
        before, self._config = self._config, config
        if (before.shadow, before.policy) == (config.shadow, config.policy):
            return False
        old, self.alternation = self.alternation, self._new_alternation()
        if old is not None:
            old.close()
        if self.alternation is not None:
            self.alternation.start()
        return old is not None or self.alternation is not None

    def told(self) -> dict[str, Any] | None:
        """For `/admin/status`; None = there is no shadow policy.

        `disagreement_frac` is counted, `predicted_…` is of one step and by the model, `replay` is of a whole
        recording, `switchback` is measured.
        """
        shadow = self._config.shadow
        if shadow is None:
            return None
        told = self._decider.notes.tally.figures()
        return {
            "name": shadow.policy,
            "experiment": shadow.experiment,
            "decisions": told.decisions,
            "disagreement_frac": told.disagreement_frac if told.decisions else None,
            "predicted_difference_s": told.predicted_difference_s.mean if told.predicted else None,
            "predicted_difference_frac": told.predicted_difference_frac,
            "replay": None if self.replays is None else self.replays.told(),
            "switchback": None if self.alternation is None else self.alternation.told(),
        }

    def _new_alternation(self) -> Alternation | None:
        shadow = self._config.shadow
        if shadow is None or shadow.experiment != "switchback":
            return None
        return Alternation(
            self._loop, self._decider, shadow.policy, shadow.period_s, self._decider.rules.seed
        )

    def _replayed_policies(self) -> tuple[str, str] | None:
        """Only while one policy is live all the time does a recording tell of it."""
        shadow = self._config.shadow
        if shadow is None or shadow.experiment != "none":
            return None
        return self._decider.rules.default.spec, shadow.policy
