"""Types that the gateway's packages share: endpoints, facts, nodes, tenants, exchanges, interfaces.

Times are seconds of the event loop's clock (`loop.time()`). Tests may use a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trimtab.gateway.stalled_streams import StreamGaps

if TYPE_CHECKING:
    from trimtab.domain.view import Plan  # loads numba

DEADLINE_CODE = "deadline"  # code of the refusal after the client's own deadline


class Dialect(Enum):
    """The API whose format errors and stream events have."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class Kind(Enum):
    """The kind of an endpoint. Its value is part of the name of a request class: `MODEL/KIND`."""

    CHAT = "chat"  # /v1/chat/completions
    COMPLETION = "completion"
    RESPONSE = "response"  # /v1/responses
    MESSAGES = "messages"  # /v1/messages, Anthropic's form
    COUNT_TOKENS = "count_tokens"  # /v1/messages/count_tokens
    EMBEDDING = "embedding"
    RERANK = "rerank"  # and scores of pairs
    IMAGE = "image"
    SPEECH = "speech"
    TRANSCRIPTION = "transcription"
    VIDEO = "video"
    REALTIME = "realtime"  # a WebSocket
    MODELS = "models"
    HEALTH = "health"
    READY = "ready"
    JOB = "job"  # /v1/jobs…
    CHAIN = "chain"  # /v1/chains…
    BATCH = "batch"  # /v1/files… and /v1/batches…
    PREFLIGHT = "preflight"  # a browser asks whether another origin's page may send a request
    RELAY = "relay"  # allowed by `relay_paths`

    __hash__ = object.__hash__  # faster: Enum's own hash is a Python call


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path that clients may use."""

    path: str  # as configured; may end in a parameter, such as /v1/jobs/{id}
    methods: tuple[str, ...]
    kind: Kind
    dialect: Dialect = Dialect.OPENAI
    replayable: bool = False  # a second attempt on another node is safe
    local: bool = False  # the gateway answers it itself


@dataclass(slots=True, unsafe_hash=True)  # immutable by convention: creating a frozen one is slower
class Facts:
    """The size of a request as its body states it. Zero = not stated or not applicable."""

    model: str
    stream: bool = False
    prompt_tokens: float = 0.0  # estimated from the text's length
    max_tokens: float = 0.0  # limit of one answer
    answers: int = 1  # number of answers: n × prompts
    images: int = 0
    steps: int = 0
    megapixels: float = 0.0  # per image
    audio_s: float = 0.0
    video_s: float = 0.0
    session: str = ""
    previous_response_id: str = ""
    wants_usage: bool = False  # the client itself requested the stream's usage chunk
    prefix_blocks: tuple[int, ...] = ()  # chained hashes of the first blocks of the messages


@dataclass(slots=True, unsafe_hash=True)  # never changed, as Facts
class Usage:
    """The usage that a backend reports."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error response of the gateway itself. `api.errors` writes it in a dialect."""

    status: int
    code: str  # machine-readable, such as "queue_full"
    message: str
    retry_after_s: float = 0.0  # 0 = none
    param: str | None = None
    allow: tuple[str, ...] = ()  # with 405: the methods that the path allows

    @property
    def is_late(self) -> bool:
        """Whether the reason is that the client's own deadline has passed."""
        return self.code == DEADLINE_CODE


class Cause(Enum):
    """Why an attempt on a node failed."""

    CONNECT = "connect"  # nothing was sent
    BUSY = "busy"  # 503: the node has no room now
    RATE_LIMITED = "rate_limited"  # 429: the request's key or model has used up its rate at this node
    SERVER_ERROR = "server_error"  # another 5xx
    RESET = "reset"  # the connection closed before the response was complete
    BAD_RESPONSE = "bad_response"  # no HTTP, or wrong framing
    FIRST_BYTE = "first_byte_timeout"
    IDLE = "idle_timeout"
    TOTAL = "total_timeout"
    PREEMPTED = "preempted"  # its place went to a queue below its guarantee; the node is not to blame
    LOAD = "load_failed"  # the node did not load the model or adapter; nothing was sent


class Outcome(Enum):
    """How an exchange ended."""

    DONE = "done"  # a backend's complete response with a status below 500
    FAILED = "failed"  # no node gave a complete response
    REFUSED = "refused"  # the gateway refused it before the first attempt
    CANCELLED = "cancelled"  # the client disconnected
    EXPIRED = "expired"  # its deadline passed


@dataclass(slots=True)
class Tenant:
    """The owner of requests. `Tenants` finds a tenant by key and counts its limits."""

    name: str
    idx: int
    weight: float = 1.0
    may_set_priority: bool = False
    may_name_tenant: bool = False
    background: bool = False  # all its requests use spare capacity only
    in_flight: int = 0
    limits: Any = None  # tenants.Limits
    rules: Any = None  # key_rules.KeyRules, of a key that was made at run time
    zone: str = ""  # where its requests come from; "" = where the gateway is
    is_private: bool = False  # what is known of its requests stays in the process


class Health(IntEnum):
    """Whether a node gets work."""

    UP = 0
    SUSPECT = 1  # still gets work; the last check failed
    DOWN = 2  # checks fail, or nothing connects
    EJECTED = 3  # an outlier, for a while
    DRAINING = 4  # being removed: gets nothing new


@dataclass(slots=True, eq=False)
class Node:
    """A backend, shared by the whole gateway. `idx` is its position in every View."""

    name: str
    url: str
    idx: int
    host: str
    port: int
    tls: bool
    models: tuple[str, ...]  # empty = all that it lists itself
    max_requests: int  # capacity in requests in flight
    max_tokens: float = 0.0  # capacity in tokens in flight; 0 = not counted
    type_name: str = ""  # nodes of one type share estimates; default: its own name
    authorization: bytes = field(default=b"", repr=False)  # header value for this backend; b"" = none
    ssl: Any = None  # ssl.SSLContext where tls
    base_path: str = ""
    server_name: str = ""  # for TLS and the Host header where `host` is a pinned address; "" = `host`
    is_429_its_own: bool = False  # its 429 says that the node is full, as a 503 does
    health: Health = Health.UP
    reason: str = ""  # why it is not UP
    in_flight: int = 0  # open attempts of this process
    served: int = 0
    failed: int = 0
    last_byte_s: float = 0.0  # time of the last byte from it
    reported: dict[str, float] = field(default_factory=dict)  # values from polling: "running", "waiting", …
    reported_s: dict[str, float] = field(default_factory=dict)  # source of values → when its page was read
    gap_s: float = 0.0  # between chunks of its streams that came one by one, in all
    gaps: int = 0  # how many
    loader: Any = None  # nodes.item_loader.ItemLoader, where its models or adapters are loaded by calls
    # By model: until when its streams go without `stream_options`, which it has refused; 0 = it takes it.
    unasked_until_s: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of an exchange on a node."""

    node: Node
    begun_s: float  # inf while the node loads what the request needs
    sent_s: float = 0.0  # time at which the whole request was written
    head_s: float = 0.0  # time of the response's head
    first_byte_s: float = 0.0  # time of the response's first body byte
    ended_s: float = 0.0
    cause: Cause | None = None  # why it failed
    status: int = 0
    retry_after_s: float = 0.0  # the node's Retry-After, with a 429 or 503; 0 = none
    hedge: bool = False
    load_s: float = 0.0  # before `begun_s`: how long the node loaded what the request needs


class LoadEvent(NamedTuple):
    """A call that ended."""

    node: Node
    item: str
    action: str  # load, unload
    outcome: str  # done, failed, timeout, lost
    seconds: float


NO_BLOCKS: Mapping[int, int] = {}


class Exchange:
    """One request of a client, from its head to the last byte of its response.

    The data plane makes it and feeds it; the dispatcher calls `start` and `refuse`, which the data plane's
    own subclass implements.
    """

    __slots__ = (
        "actual_units",
        "arrived_s",
        "attempts",
        "background",
        "body",
        "class_idx",
        "committed",
        "deadline_s",
        "decision",
        "ended_s",
        "endpoint",
        "estimate_s",
        "facts",
        "gaps",
        "id",
        "matched",
        "method",
        "node_idx",
        "only_node",
        "outcome",
        "parts_max",
        "path",
        "priority",
        "refusal",
        "replayable",
        "response_bytes",
        "response_status",
        "route",
        "row",
        "session",
        "spec",
        "started_s",
        "streamed_chunks",
        "target",
        "tenant",
        "traceparent",
        "units",
        "unread_coding",
        "usage",
    )

    is_inner = False  # it is one of the gateway itself, for requests of clients
    subset: frozenset[int] | None = None  # positions of the nodes that may serve it; None = all

    def __init__(self) -> None:
        self.id = ""  # x-request-id, the client's or ours
        self.traceparent = ""
        self.method = "GET"
        self.path = ""
        self.target = b""  # path and query as they go upstream
        self.endpoint: Endpoint | None = None
        self.tenant: Tenant | None = None
        self.facts: Facts | None = None
        self.body: bytes | None = None  # None = spooled or streamed: not replayable
        self.arrived_s = 0.0  # when it was whole and handed to the dispatcher
        self.started_s = 0.0  # when it was first sent to a node
        self.ended_s = 0.0  # when it was over
        self.deadline_s = float("inf")
        self.priority = 0
        self.background = False
        self.parts_max = 1  # items that nodes may serve apart; of a part: those of the whole request
        self.session = ""
        self.route = ""  # the configured route that the client named; "" = a model by its own name
        self.replayable = False
        self.committed = False  # the client has the first body byte
        self.class_idx = -1
        self.units = 0.0  # estimated work units
        self.actual_units = 0.0  # by what its node says it used; 0 = it does not say
        self.estimate_s = 0.0  # predicted service seconds on the node it runs on
        # The dispatcher's own:
        self.row = -1
        self.spec: Any = None  # engine.live_driver.RequestSpec, as it entered its policy's state
        self.only_node = ""  # the name of the node that alone can serve it; "" = any
        self.node_idx = -1  # of the node whose slot it holds; -1 = none
        self.matched: Mapping[int, int] = NO_BLOCKS  # node → blocks of the prompt that it seems to have
        self.decision: Any = None  # decide.decision_log.Decision, the latest
        self.attempts: list[Attempt] = []
        self.usage: Usage | None = None
        self.unread_coding = ""  # the content coding that hides the usage of its answer
        self.response_status = 0
        self.response_bytes = 0
        self.streamed_chunks = 0
        self.gaps: StreamGaps | None = None  # between chunks that came one by one
        self.outcome: Outcome | None = None
        self.refusal: Refusal | None = None

    @property
    def body_bytes(self) -> int:
        """Size of its body."""
        return 0 if self.body is None else len(self.body)

    def start(self, node: Node) -> None:
        """Send it to this node, now."""
        raise NotImplementedError

    @property
    def may_be_taken_back(self) -> bool:
        """Whether it may leave its node now, to be sent to another one later."""
        return False

    def take_back(self) -> None:
        """Leave the node: another request gets its place. It is started again later, or refused."""
        raise NotImplementedError

    def refuse(self, refusal: Refusal) -> None:
        """Answer it without a backend: it is over."""
        raise NotImplementedError

    def move(self, attempt: Attempt) -> bool:
        """The attempt's node seems frozen: give it up for another where that is allowed; returns whether."""
        return False


class Dispatcher(Protocol):
    """The dispatcher's interface to the data plane. Calls may call `start` or `refuse` at once."""

    def submit(self, exchange: Exchange) -> None:
        """Submit a complete request. `start` or `refuse` follows, at the earliest in `decide`."""

    def decide(self) -> None:
        """Decide about all submitted requests. Call it once after a batch of submissions."""

    def replace(self, waiting: Exchange, by: Exchange) -> None:
        """Give the place of a waiting exchange to another of another size, or to itself, resized."""

    def progress(self, exchange: Exchange, chunks: int) -> None:
        """Report new chunks of a running request's stream, for token counts."""

    def committed(self, exchange: Exchange) -> None:
        """The client gets the first body byte of its answer: it stays at its node."""

    def done(self, exchanges: Sequence[Exchange]) -> None:
        """Report exchanges with complete responses, in the order of their ends. Usage and status are set."""

    def lost(self, exchange: Exchange, cause: Cause) -> None:
        """Report a failed attempt that may be retried: decide again.

        A node that the request has lost is chosen only if there is no other.
        """

    def has_another(self, exchange: Exchange) -> bool:
        """Whether a node that the request has not tried gets work and can serve it, now or later."""

    def failed(self, exchange: Exchange, cause: Cause) -> None:
        """Report a failed attempt that is not retried."""

    def abort(self, exchange: Exchange) -> None:
        """Drop a request in any state: the client left, or it was answered in another way."""

    def hedge(self, exchange: Exchange) -> Node | None:
        """A second node for an uncommitted request, with its slot taken; None = no node is free."""

    def release(self, node: Node, exchange: Exchange) -> None:
        """Release the slot of one of two hedged attempts. The other attempt goes on."""

    def moved(self, exchange: Exchange, node: Node) -> None:
        """A proxy has sent a running request to this node instead: its slot moves along."""

    def able(self, exchange: Exchange) -> list[Node]:
        """The nodes that get work and can serve it, now or later; the least requests in flight first."""


class Observer:
    """Base of parts that observe exchanges: metrics, recorder, decision records, logs.

    A subclass overrides the methods that it needs; the others are not called. Calls must not raise or wait.
    """

    __slots__ = ()

    sees_inner = False  # whether `ended` reports what went to nodes for split or batched requests too

    def arrived(self, exchange: Exchange) -> None:
        """The exchange was submitted to the dispatcher."""

    def started(self, exchange: Exchange, attempt: Attempt) -> None:
        """An attempt begins."""

    def lost(self, exchange: Exchange, attempt: Attempt) -> None:
        """An attempt failed, for `attempt.cause`."""

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """Exchanges ended, in this order. `ended_s` and `outcome` are set.

        Every exchange is reported once, refused ones too. The call comes at the end of a turn of the event
        loop, with all exchanges that ended in it.
        """


class DecisionListener:
    """A part that follows the policies overrides the methods that it needs. Calls must not raise or wait."""

    def policy_failed(self, policy: str) -> None:
        """The policy raised or returned an invalid answer; least connections decided instead."""

    def plan_changed(self, policy: str, plan: Plan) -> None:
        """A plan takes force."""


Observers = Sequence[Observer]


class ObserverCalls(NamedTuple):
    """What to call at each event. Methods that an observer inherits unchanged are not called."""

    arrived: tuple[Callable[[Exchange], None], ...]
    started: tuple[Callable[[Exchange, Attempt], None], ...]
    lost: tuple[Callable[[Exchange, Attempt], None], ...]
    ended: tuple[Callable[[Sequence[Exchange]], None], ...]
    inner_ended: tuple[Callable[[Sequence[Exchange]], None], ...]

    @classmethod
    def of(cls, observers: Observers) -> ObserverCalls:
        """The calls of these observers, in their order."""
        return cls(
            tuple(one.arrived for one in observers if _is_own(one, "arrived")),
            tuple(one.started for one in observers if _is_own(one, "started")),
            tuple(one.lost for one in observers if _is_own(one, "lost")),
            tuple(one.ended for one in observers if _is_own(one, "ended")),
            tuple(one.ended for one in observers if getattr(one, "sees_inner", False)),
        )


def _is_own(observer: Observer, name: str) -> bool:
    """Whether the observer's class overrides the method for this event."""
    return getattr(type(observer), name, None) is not getattr(Observer, name)
