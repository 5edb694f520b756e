"""Compiled functions as arguments of compiled functions, with less overhead per call than numba's own.

numba looks up the address of a first-class function in every call, which takes longer than an event. A
`FunctionPointer` stores the address. numba treats its type as a function type, but unpacks the argument
differently. numba also needs time to find the type of an argument that is neither number nor array. So
`table_at` and `function_at` make bundles and functions from addresses in one array of numbers.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.experimental.function_type import FunctionModel, _get_jit_address, _get_wrapper_address
from numba.extending import NativeValue, intrinsic, register_model, typeof_impl, unbox


class FunctionPointerType(types.FunctionType):
    """Type of a function pointer. numba's own function type performs the call."""


class FunctionPointer:
    """A kernel compiled for one signature, with the addresses of its machine code. Keeps the kernel alive."""

    def __init__(self, kernel: Any, signature: Any) -> None:
        self.kernel, self.kind = kernel, FunctionPointerType(signature)
        self.c_address: int = _get_wrapper_address(kernel, signature)
        self.jit_address: int = _get_jit_address(kernel, signature)


@typeof_impl.register(FunctionPointer)
def _typeof(value: FunctionPointer, _context: Any) -> Any:
    return value.kind


register_model(FunctionPointerType)(FunctionModel)


@unbox(FunctionPointerType)
def _unbox(kind: Any, value: Any, c: Any) -> NativeValue:
    function = cgutils.create_struct_proxy(kind)(c.context, c.builder)
    function.c_addr = _pointer(value, "c_address", c)
    function.jit_addr = _pointer(value, "jit_address", c)
    function.py_addr = c.builder.bitcast(value, cgutils.voidptr_t)
    return NativeValue(function._getvalue())


def _pointer(value: Any, name: str, c: Any) -> Any:
    number = c.pyapi.object_getattr_string(value, name)
    pointer = c.pyapi.long_as_voidptr(number)
    c.pyapi.decref(number)
    return pointer


def table_at(kind: Any) -> Any:
    """An intrinsic for kernels: a bundle of this type from the address of its table."""

    @intrinsic
    def make(context: Any, address: Any) -> Any:
        def emit(target: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], cgutils.voidptr_t)

        return kind(types.int64), emit

    return make


def function_at(kind: Any) -> Any:
    """An intrinsic for kernels: a function of this pointer type from `c_address` and `jit_address`."""

    @intrinsic
    def make(context: Any, c_address: Any, jit_address: Any) -> Any:
        def emit(target: Any, builder: Any, signature: Any, args: Any) -> Any:
            function = cgutils.create_struct_proxy(kind)(target, builder)
            function.c_addr = builder.inttoptr(args[0], cgutils.voidptr_t)
            function.jit_addr = builder.inttoptr(args[1], cgutils.voidptr_t)
            function.py_addr = ir.Constant(cgutils.voidptr_t, None)
            return function._getvalue()

        return kind(types.int64, types.int64), emit

    return make
