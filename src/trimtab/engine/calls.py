"""Turns policies into functions for the loop: compiled kernels, bridged plain Python, or all interpreted.

The loop is compiled once, for first-class functions of one signature, so a new policy needs no recompilation
of the loop. A plain Python policy is called through a bridge: a kernel that calls a C callback. The address
of the callback lies in the policy's memory.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from trimtab.compiled.compiling import compile_kernel, free_llvm_module, is_compiled
from trimtab.compiled.function_pointer import FunctionPointer, FunctionPointerType, function_at, table_at
from trimtab.compiled.kernel import interpreted, is_kernel, kernel
from trimtab.compiled.tables import Table
from trimtab.domain.needs import Need
from trimtab.domain.policy import Decider, Policy, members
from trimtab.domain.view import WORK, Memory, Plan, View, empty_plan, memory
from trimtab.engine.bound_state import (
    MEMORIES,
    MEMORY,
    PLAN,
    RANKING,
    STATE,
    VIEW,
    bind,
    listed,
    numpy_plan,
    python_array,
    python_memory,
    python_plan,
    python_state,
)
from trimtab.engine.decision_budget import DecisionBudget
from trimtab.engine.held_work import CALL_RAISED
from trimtab.engine.loop import advance, begin
from trimtab.engine.policy_switch import activate
from trimtab.engine.python_policies import Chooser, bound_dispatch, bound_order, dispatch_of
from trimtab.engine.rollout_state import place_requests
from trimtab.engine.service import SERVE, serve
from trimtab.engine.state import State
from trimtab.errors import KernelError, PolicyError

INTERPRET_UP_TO = 10_000  # requests of one process: on a cold cache faster than compiling


_NUMBERS = types.Array(types.float64, 1, "C")
_WORK = numba.from_dtype(WORK)
DISPATCH = types.int64(VIEW, PLAN, _WORK, MEMORY, _NUMBERS, RANKING)
ORDER = types.float64(VIEW, PLAN, _WORK, MEMORY)
_DISPATCH_POINTER, _ORDER_POINTER = FunctionPointerType(DISPATCH), FunctionPointerType(ORDER)
BEGIN = types.void(STATE)
ACTIVATE = types.void(STATE, PLAN, _ORDER_POINTER, types.int64, types.float64)
BOUND = types.int64(types.Array(types.int64, 1, "C"), types.float64, types.int64)
PLACE_REQUESTS_BOUND = types.void(types.Array(types.int64, 1, "C"), types.int64)

Compilable = tuple[Any, Any]  # a kernel and the signature that it is compiled for

state_at, plan_at = table_at(STATE), table_at(PLAN)
_INT_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
_FLOAT_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)

dispatch_at, order_at = function_at(_DISPATCH_POINTER), function_at(_ORDER_POINTER)
advance_at = function_at(FunctionPointerType(BOUND))


@intrinsic
def _call_int(context: Any, address: Any, serial: Any) -> Any:
    def emit(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        pointer = builder.inttoptr(args[0], ir.FunctionType(word, [word]).as_pointer())
        return builder.call(pointer, [args[1]])

    return types.int64(types.int64, types.int64), emit


@intrinsic
def _call_float(context: Any, address: Any, serial: Any) -> Any:
    def emit(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        pointer = builder.inttoptr(args[0], ir.FunctionType(ir.DoubleType(), [word]).as_pointer())
        return builder.call(pointer, [args[1]])

    return types.float64(types.int64, types.int64), emit


@kernel
def advance_bound(bound: Any, until_s: float, max_steps: int) -> int:
    """`advance` with all arguments but its two numbers bound as addresses: the call is much faster."""
    return advance(
        state_at(bound[0]),
        plan_at(bound[1]),
        dispatch_at(bound[2], bound[3]),
        order_at(bound[4], bound[5]),
        plan_at(bound[6]),
        dispatch_at(bound[7], bound[8]),
        until_s,
        max_steps,
    )


@kernel
def place_requests_bound(bound: Any, n_placed: int) -> None:
    """`place_requests` with all arguments but its number bound as addresses."""
    place_requests(state_at(bound[0]), plan_at(bound[1]), order_at(bound[4], bound[5]), n_placed)


@kernel
def bridge_dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> Any:
    """Stand-in for a plain Python `dispatch`."""
    return _call_int(memory.ints[0], work.serial)  # type: ignore[call-arg]


@kernel
def bridge_order(view: View, plan: Plan, work: Any, memory: Memory) -> Any:
    """Stand-in for a plain Python `order`."""
    return _call_float(memory.ints[0], work.serial)  # type: ignore[call-arg]


class Raised(Exception):  # noqa: N818 - a signal between the loop and its host
    """A policy raised inside the loop. The cause is the original exception."""

    def __init__(self, serial: int) -> None:
        super().__init__(serial)
        self.serial = serial


class BoundPlan(NamedTuple):
    """A plan in the forms that functions take."""

    arrays: Plan  # policies in plain Python
    table: Any  # the loop


def bound_plan(plan: Plan, *, compiled: bool) -> BoundPlan:
    """Bind a plan for runs of one mode."""
    return BoundPlan(numpy_plan(plan), Table(PLAN, [plan]) if compiled else python_plan(plan))


class Calls:
    """One run's loop and the functions that it calls, in one of two modes.

    compiled: the loop and every policy marked with `@kernel` are machine code. Plain policies are bridged.
    interpreted: loop and kernels are plain Python over memoryviews. Nothing is compiled; results are equal.

    A policy in plain Python sees NumPy columns in both modes.
    """

    def __init__(
        self,
        state: State,
        decider: Decider,
        shadow: Policy | None = None,
        *,
        compiled: bool,
        bounds_time: bool = False,
    ) -> None:
        """`bounds_time`: plain Python may not keep the host from its other work (`decision_budget`)."""
        self._state, self._compiled, self._bounds_time = state, compiled, bounds_time
        self._callbacks: list[Any] = []  # ctypes callbacks must outlive their last call
        self._raised: tuple[int, BaseException] | None = None
        self._addresses: np.ndarray | None = None  # the argument `bound` of `advance_bound`
        self._plan = self._shadow_plan = bound_plan(empty_plan(), compiled=compiled)
        policy, order = decider
        dispatch = dispatch_of(policy, len(state.order_memories))
        shadow_dispatch = dispatch if shadow is None else dispatch_of(shadow, 1)
        self._functions: tuple[Any, Any, Any] = dispatch, order.order, shadow_dispatch
        if compiled:
            self._bind_compiled()
        else:
            self._bind_interpreted()

    def _bind_compiled(self) -> None:
        _load_loop()
        if self._state.config["engines"][0] == 1:
            pointer = _pointer_to(serve, SERVE)
            self._state.config["serve_c"] = pointer.c_address
            self._state.config["serve_jit"] = pointer.jit_address
        self._advance: Any = advance_bound
        self._begin: Any = begin
        self._bound: State = self._bind_functions()
        self._bind_addresses()

    def _bind_functions(self) -> State:
        """Make the policies callable; returns the state with the memories for these calls."""
        dispatch, order, shadow = self._functions
        self._dispatch: Any = _pointer_to(dispatch if is_kernel(dispatch) else bridge_dispatch, DISPATCH)
        self._order: Any = _pointer_to(order if is_kernel(order) else bridge_order, ORDER)
        self._shadow: Any = _pointer_to(shadow if is_kernel(shadow) else bridge_dispatch, DISPATCH)
        self._callbacks.clear()
        many, order_memories = len(self._state.order_memories), self._state.order_memories
        memories, shadow_memories = self._state.memories[:many], self._state.memories[many:]
        if not is_kernel(dispatch):
            memories = self._bridged(_INT_CALLBACK(self._dispatch_callback(dispatch, "_plan", 0)))
        if shadow_memories and not is_kernel(shadow):
            callback = _INT_CALLBACK(self._dispatch_callback(shadow, "_shadow_plan", many))
            shadow_memories = self._bridged(callback)[:1]
        if not is_kernel(order):
            order_memories = self._bridged(_FLOAT_CALLBACK(self._order_callback(order)))
        return self._state._replace(memories=memories + shadow_memories, order_memories=order_memories)

    def _bind_addresses(self) -> None:
        self._arrays: Any = bind(self._bound)
        self._write_addresses()

    def _write_addresses(self) -> None:
        functions = [(f.c_address, f.jit_address) for f in (self._dispatch, self._order, self._shadow)]
        dispatch, order, shadow = functions
        words = [self._arrays.address, self._plan.table.address, *dispatch, *order]
        self._addresses = np.array([*words, self._shadow_plan.table.address, *shadow], np.int64)

    def _bind_interpreted(self) -> None:
        self._arrays = python_state(self._state)
        self._advance, self._begin = interpreted(advance), interpreted(begin)
        self._interpret_functions()

    def _interpret_functions(self) -> None:
        dispatch, order, shadow = self._functions
        many, plain = len(self._state.order_memories), self._dispatch_callback
        self._dispatch = interpreted(dispatch) if is_kernel(dispatch) else plain(dispatch, "_plan", 0)
        self._order = interpreted(order) if is_kernel(order) else self._order_callback(order)
        if len(self._state.memories) == many:
            self._shadow = self._dispatch
        else:
            self._shadow = interpreted(shadow) if is_kernel(shadow) else plain(shadow, "_shadow_plan", many)

    def switch_policy(self, decider: Decider, memories: list[Memory], order_memories: list[Memory]) -> None:
        """Switch to another policy and order, with memories [dispatchers]. The shadow stays.

        Without a shadow the number of draws becomes the policy's own: some policies take one sample per draw.
        """
        many, (policy, order) = len(order_memories), decider
        self._state.config["compares"] = policy.compares
        if len(self._state.memories) == many:
            self._state = self._state._replace(draws=np.zeros(policy.draws))
        self._functions = dispatch_of(policy, many), order.order, self._functions[2]
        self._rebind([*memories, *self._state.memories[many:]], order_memories)

    def switch_shadow(self, shadow: Policy, own: Memory) -> None:
        """Switch to another shadow policy."""
        many = len(self._state.order_memories)
        self._functions = *self._functions[:2], dispatch_of(shadow, 1)
        self._rebind([*self._state.memories[:many], own], self._state.order_memories)

    def _rebind(self, memories: list[Memory], order_memories: list[Memory]) -> None:
        self._state = self._state._replace(memories=memories, order_memories=order_memories)
        if self._compiled:
            self._bound = self._bind_functions()
            lists = {name: listed(self._bound, name) for name in MEMORIES}
            self._arrays.replace(**lists, draws=self._bound.draws)
            self._write_addresses()
        else:
            views = {name: [python_memory(m) for m in getattr(self._state, name)] for name in MEMORIES}
            self._arrays = self._arrays._replace(**views, draws=memoryview(self._state.draws))
            self._interpret_functions()

    def activate(self, is_new_order: bool, now_s: float) -> None:
        """Log every node as changed for the new policy, and compute new keys if the order changes.

        Raises `Raised` from an exception of the order.
        """
        given = self._arrays, self._plan.table, self._order
        function = _compiled(activate, ACTIVATE) if self._compiled else interpreted(activate)
        self._run(function, *given, int(is_new_order), now_s)

    def place_requests(self, n_placed: int) -> None:
        """Start with the first rows at nodes (see `rollout_state`). Raises `Raised`."""
        if self._compiled:
            self._run(_compiled(place_requests_bound, PLACE_REQUESTS_BOUND), self._addresses, n_placed)
        else:
            self._run(interpreted(place_requests), self._arrays, self._plan.table, self._order, n_placed)

    def _run(self, function: Any, *args: Any) -> None:
        try:
            with np.errstate(over="ignore"):
                function(*args)
        except Exception as error:
            self._raised = self._raised or (int(self._state.counts["deciding"][0]), error)
        self._raise_what_was_raised()

    def _bridged(self, callback: Any) -> list[Memory]:
        """The memories for a bridge: each holds the callback's address."""
        self._callbacks.append(callback)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        return [memory(ints=[address]) for _ in self._state.order_memories]

    def _bounded(self, call: Any) -> Any:
        return partial(DecisionBudget().call, call) if self._bounds_time else call

    def _dispatch_callback(self, function: Any, plan: str, first: int) -> Any:
        """A callback for a plain `dispatch`. `first`: the dispatcher whose view and memory row 0 uses."""
        decide = self._bounded(bound_dispatch(function, self._state, first))
        deciding = memoryview(self._state.counts["deciding"])

        def call(*_: Any) -> int:
            row = deciding[0]
            try:
                return decide(getattr(self, plan).arrays, row)
            except BaseException as error:
                if first == 0 or not isinstance(error, Exception):  # a shadow's failures are counted only
                    self._raised = (row, error)
                return CALL_RAISED

        return call

    def _order_callback(self, function: Any) -> Any:
        key = self._bounded(bound_order(function, self._state))
        deciding = memoryview(self._state.counts["deciding"])

        def call(*_: Any) -> float:
            row = deciding[0]
            try:
                return key(self._plan.arrays, row)
            except BaseException as error:
                self._raised = (row, error)
                return math.nan

        return call

    def start_anew(self) -> None:
        """Reset the copies of policies with `choose`."""
        for function in self._functions:
            if isinstance(function, Chooser):
                function.start_anew()

    def set_plan(self, plan: Plan) -> None:
        """Put a plan in force."""
        self.use_plan(bound_plan(plan, compiled=self._compiled))

    def use_plan(self, plan: BoundPlan) -> None:
        """Put an already bound plan in force. Runs can share one."""
        self._plan = plan
        if self._addresses is not None:
            self._addresses[1] = plan.table.address

    def set_shadow_plan(self, plan: Plan) -> None:
        """Put a plan of the shadow policy in force."""
        self._shadow_plan = bound_plan(plan, compiled=self._compiled)
        if self._addresses is not None:
            self._addresses[6] = self._shadow_plan.table.address

    def begin(self) -> None:
        """Schedule the first telemetry, plan and fault events."""
        with np.errstate(over="ignore"):
            self._begin(self._arrays)

    def advance(self, until_s: float, max_steps: int) -> int:
        """Run `loop.advance` under the plan in force. Raises `Raised` from an exception of a policy."""
        try:
            if self._compiled:
                code: int = self._advance(self._addresses, until_s, max_steps)
            else:
                code = self._advance_interpreted(until_s, max_steps)
        except Exception as error:
            code = 0
            self._raised = self._raised or (int(self._state.counts["deciding"][0]), error)
        if self._raised is not None:
            self._raise_what_was_raised()
        return code

    def _raise_what_was_raised(self) -> None:
        if self._raised is not None:
            raised, self._raised = self._raised, None
            self._raise(*raised)

    def _advance_interpreted(self, until_s: float, max_steps: int) -> int:
        functions = (self._dispatch, self._order)
        plan, shadow = self._plan.table, (self._shadow_plan.table, self._shadow)
        with np.errstate(over="ignore"):
            return int(self._advance(self._arrays, plan, *functions, *shadow, until_s, max_steps))

    @staticmethod
    def _raise(serial: int, cause: BaseException) -> None:
        if not isinstance(cause, Exception):  # an interruption does not come from the policy
            raise cause
        raise Raised(serial) from cause

    @property
    def addresses(self) -> np.ndarray:
        """The argument of kernels like `advance_bound`. Raises RuntimeError in an interpreted run."""
        if self._addresses is None:
            raise RuntimeError("an interpreted run has no addresses")
        return self._addresses

    @property
    def state(self) -> State:
        """The arrays in use."""
        return self._state

    def use_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Use larger arrays of the state, by name."""
        if self._compiled:
            self._bound = self._bound._replace(**arrays)
            self._bind_addresses()
        else:
            self._arrays = self._arrays._replace(**{name: python_array(a) for name, a in arrays.items()})
        self._state = self._state._replace(**arrays)


_pointers: dict[Any, FunctionPointer] = {}  # a lookup of addresses takes longer than a short rollout


def _pointer_to(function: Any, signature: Any) -> FunctionPointer:
    if function not in _pointers:
        _pointers[function] = FunctionPointer(_compiled(function, signature), signature)
    return _pointers[function]


def _compiled(function: Any, signature: Any) -> Any:
    """`compile_kernel`, but raises PolicyError for a policy's kernel that does not compile."""
    try:
        return compile_kernel(function, signature)
    except KernelError as error:
        raise PolicyError(str(error)) from error


def _load_loop() -> None:
    """Compile the loop, or load it. The machine code of `advance_bound` contains `advance`."""
    if advance_bound.signatures:  # type: ignore[attr-defined]
        return
    for function, signature in _LOOP:
        free_llvm_module(_compiled(function, signature))


def advance_addresses() -> np.ndarray:
    """Addresses of `advance_bound`, [2], for kernels that drive several runs (`advance_at`)."""
    _load_loop()
    pointer = _pointer_to(advance_bound, BOUND)
    return np.array([pointer.c_address, pointer.jit_address], np.int64)


_LOOP: list[Compilable] = [(advance_bound, BOUND), (begin, BEGIN)]
_BRIDGES: list[Compilable] = [(bridge_dispatch, DISPATCH), (bridge_order, ORDER)]


def is_ready(*policies: Policy) -> bool:
    """Whether the cache holds all kernels that compiled runs of these policies need."""
    return all(is_compiled(*k) for k in [*_LOOP, *_BRIDGES, *kernels_of(policies)])


def are_runs_compiled(deciders: Sequence[Decider], requests: int, processes: int = 1) -> bool:
    """The mode "auto": whether runs of so many requests in all are compiled, on so many processes.

    They are if the cache has the kernels. On a cold cache short runs are interpreted, unless a policy needs
    rollouts, each of which simulates many requests.
    """
    is_long = requests > INTERPRET_UP_TO * processes
    return (
        is_long
        or any(Need.ROLLOUT in decider.dispatch.all_needs for decider in deciders)
        or all(is_ready(*decider) for decider in deciders)
    )


def kernels_of(policies: Iterable[Policy]) -> list[Compilable]:
    """The kernels that runs of these policies call besides the loop and the bridges."""
    needed: list[Compilable] = []
    for policy in policies:
        needed += [(activate, ACTIVATE)] if policy.candidates else []
        needed += [(place_requests_bound, PLACE_REQUESTS_BOUND)] if Need.ROLLOUT in policy.all_needs else []
        for member in members(policy):
            needed += (
                [(member.dispatch, DISPATCH)] if member.dispatches() and not type(member).chooses() else []
            )
            needed.append((member.order, ORDER))
    return [k for k in needed if is_kernel(k[0])]


def compile_all(policies: Iterable[Policy]) -> None:
    """Compile the loop, the bridges and these policies, or load them from the cache. Raises PolicyError."""
    _load_loop()
    for needed in [*_BRIDGES, *kernels_of(policies)]:
        _compiled(*needed)


def compile_engines() -> None:
    """Compile what nodes with engines need, or load it from the cache."""
    _compiled(serve, SERVE)


def compile_policies(policies: Iterable[Policy]) -> None:
    """Compile the kernels of these policies, or load them from the cache. Raises PolicyError."""
    for needed in kernels_of(policies):
        _compiled(*needed)
