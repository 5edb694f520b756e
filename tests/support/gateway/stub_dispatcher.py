"""A dispatcher for tests of the data plane: round robin over nodes, and a log of what it was told."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.gateway.model import Attempt, Cause, Exchange, Node, Refusal


def node_at(port: int, name: str = "n", idx: int = 0, host: str = "127.0.0.1") -> Node:
    return Node(
        name, f"http://{host}:{port}", idx, host=host, port=port, tls=False, models=(), max_requests=1000
    )


class RoundRobin:
    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.log: list[tuple[str, object]] = []
        self.done_by: list[str] = []  # nodes
        self.progressed = 0
        self.hedges: list[Node] = []  # what `hedge` hands out
        self.held: list[Exchange] = []
        self.hold = False
        self.is_alone = False  # a lost request finds no other node
        self._next = 0

    def submit(self, exchange: Exchange) -> None:
        self.log.append(("submit", exchange.path))
        if self.hold:
            self.held.append(exchange)
        else:
            self._start(exchange)

    def replace(self, waiting: Exchange, by: Exchange) -> None:
        self.held[self.held.index(waiting)] = by

    def let_go(self) -> None:
        """Start what is held."""
        held, self.held = self.held, []
        for exchange in held:
            self._start(exchange)

    def decide(self) -> None:
        """All is decided about already."""

    def _start(self, exchange: Exchange) -> None:
        lost = {attempt.node for attempt in exchange.attempts}
        left = [node for node in self.nodes if node not in lost]
        if not left:
            exchange.refuse(Refusal(503, "no_node", "There is no node for it.", 1.0))
            return
        node = left[0] if lost else left[self._next % len(left)]
        self._next += not lost
        exchange.start(node)

    def progress(self, exchange: Exchange, chunks: int) -> None:
        self.progressed += chunks

    def committed(self, exchange: Exchange) -> None:
        """Nothing is ever taken back."""

    def done(self, exchanges: Sequence[Exchange]) -> None:
        for exchange in exchanges:
            self.log.append(("done", exchange.response_status))
            self.done_by.append(exchange.attempts[-1].node.name)

    def lost(self, exchange: Exchange, cause: Cause) -> None:
        self.log.append(("lost", cause))
        self._start(exchange)

    def has_another(self, exchange: Exchange) -> bool:
        return not self.is_alone

    def failed(self, exchange: Exchange, cause: Cause) -> None:
        self.log.append(("failed", cause))

    def abort(self, exchange: Exchange) -> None:
        self.log.append(("abort", exchange.path))

    def hedge(self, exchange: Exchange) -> Node | None:
        return self.hedges.pop() if self.hedges else None

    def resume(self, exchange: Exchange, node: Node) -> None:
        self.log.append(("resume", node.name))

    def release(self, node: Node, exchange: Exchange) -> None:
        self.log.append(("release", node.name))


class Notes:
    """An observer that writes everything down."""

    def __init__(self) -> None:
        self.ends: list[Exchange] = []
        self.begun: list[Exchange] = []
        self.losses: list[Cause | None] = []
        self.n_arrived = self.n_started = 0

    def arrived(self, exchange: Exchange) -> None:
        self.n_arrived += 1

    def started(self, exchange: Exchange, attempt: Attempt) -> None:
        self.n_started += 1
        self.begun.append(exchange)

    def lost(self, exchange: Exchange, attempt: Attempt) -> None:
        self.losses.append(attempt.cause)

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        self.ends.extend(exchanges)
