"""Bundles of arrays that a kernel takes as one pointer: View, Plan, Memory and the state of a run.

As NamedTuples, 60 arrays are 400 words by value in every call that LLVM does not inline. That makes calls and
compilation slow. As a table of addresses, bound once, a bundle is one word. `view.nodes` reads the table and
makes an array without a reference count. The reads are marked invariant, so LLVM keeps them in registers. In
plain Python the same expressions read a NamedTuple of memoryviews.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, datamodel
from numba.core.typing.templates import (
    AbstractTemplate,
    AttributeTemplate,
    infer_getattr,
    infer_global,
    signature,
)
from numba.extending import (
    NativeValue,
    lower_builtin,
    lower_getattr_generic,
    register_model,
    typeof_impl,
    unbox,
)
from numba.np.arrayobj import make_array, populate_array

from trimtab.compiled.arrays import Field, ListField, RecordField, fields_of

WORDS = 3  # per field: address, and up to two lengths


class TableType(types.Type):
    """Type of a bundle; `fields` are (name, numba type) of arrays, records and lists of bundles.

    LLVM reads the words of a type with `is_read_ahead` before loops, even if only some branches need them.
    This suits bundles of few fields and policies with long loops.
    """

    def __init__(self, label: str, fields: tuple[tuple[str, Any], ...], is_read_ahead: bool = False) -> None:
        self.label, self.fields, self.is_read_ahead = label, fields, is_read_ahead
        text = ", ".join(f"{n}: {t}" for n, t in fields)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]  # short: the name is a part of all symbols
        super().__init__(name=f"{label}#{digest}")

    def position(self, name: str) -> int:
        """Position of a field."""
        return [n for n, _ in self.fields].index(name)


class TableListType(types.Type):
    """Type of a list of bundles of one type, stored one after the other."""

    def __init__(self, table: TableType) -> None:
        self.table = table
        super().__init__(name=f"list of {table.name}")


def table_of(
    bundle: type, bundles: Mapping[type, TableType] | None = None, *, is_read_ahead: bool = False
) -> TableType:
    """Type of a declared bundle. `bundles`: types of the bundles in its lists."""
    kinds = [(name, _kind(field, bundles or {})) for name, field in fields_of(bundle).items()]
    return TableType(bundle.__name__, tuple(kinds), is_read_ahead)


def _kind(field: Field, bundles: Mapping[type, TableType]) -> Any:
    if isinstance(field, ListField):
        return TableListType(bundles[field.bundle])
    kind = numba.from_dtype(field.dtype)
    return kind if isinstance(field, RecordField) else types.Array(kind, len(field.axes), "C")


class Table:
    """Arrays bound as one or several bundles. Keeps the arrays alive and holds the table's address."""

    def __init__(self, kind: TableType, rows: Sequence[Iterable[Any]], *, listed: bool = False) -> None:
        self.kind = TableListType(kind) if listed else kind
        self._row_kind = kind
        self._kept = [list(row) for row in rows]
        words = [_words(kind, row) for row in self._kept]
        self._table = np.array(words, np.int64).reshape(-1)
        self.address = int(self._table.ctypes.data)

    def replace(self, **fields: Any) -> None:
        """Bind other arrays as these fields of a single bundle. No kernel may be running."""
        for name, value in fields.items():
            k = self._row_kind.position(name)
            self._kept[0][k] = value
            self._table[WORDS * k : WORDS * (k + 1)] = _field_words(*self._row_kind.fields[k], value)


def _words(kind: TableType, row: list[Any]) -> list[list[int]]:
    return [_field_words(*field, value) for field, value in zip(kind.fields, row, strict=True)]


_kind_of = functools.cache(numba.from_dtype)  # cached because the lookup dominates the time of binding


def _field_words(name: str, kind: Any, value: Any) -> list[int]:
    if isinstance(value, Table):
        return [value.address, 0, 0]
    if isinstance(kind, types.Record):
        return [value.ctypes.data, 0, 0]
    found = _kind_of(value.dtype)
    is_kind = found is kind.dtype or found == kind.dtype  # usually the same object
    if not is_kind or value.ndim != kind.ndim or not value.flags.c_contiguous:
        raise TypeError(f"{name}: {value.dtype} [{value.ndim}] does not fit {kind}")
    return [value.ctypes.data, *value.shape, *[0] * (WORDS - 1 - value.ndim)]


@typeof_impl.register(Table)
def _typeof(value: Table, _context: Any) -> Any:
    return value.kind


@register_model(TableType)
class _TableModel(datamodel.models.OpaqueModel):
    def from_argument(self, builder: Any, value: Any) -> Any:
        """The argument, marked as readable for `is_read_ahead`, so that LLVM may read its words early."""
        if self._fe_type.is_read_ahead:
            value.attributes.dereferenceable = WORDS * 8 * len(self._fe_type.fields)
            value.attributes.align = 8
        return value


register_model(TableListType)(datamodel.models.OpaqueModel)


@unbox(TableType)
@unbox(TableListType)
def _unbox(_kind: Any, value: Any, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(value, "address")
    word = c.pyapi.long_as_ulonglong(address)
    c.pyapi.decref(address)
    return NativeValue(c.builder.inttoptr(word, cgutils.voidptr_t))


@infer_getattr
class _TableAttribute(AttributeTemplate):
    key = TableType

    def generic_resolve(self, kind: TableType, name: str) -> Any:  # type: ignore[override]
        return dict(kind.fields).get(name)


@infer_global(operator.getitem)
class _TableItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if len(args) == 2 and isinstance(args[0], TableListType) and isinstance(args[1], types.Integer):
            return signature(args[0].table, args[0], types.intp)
        return None


@lower_builtin(operator.getitem, TableListType, types.Integer)
def _lower_item(_context: Any, builder: Any, sig: Any, args: Any) -> Any:
    size = ir.Constant(args[1].type, WORDS * 8 * len(sig.args[0].table.fields))
    return builder.gep(args[0], [builder.mul(args[1], size)])


def _word(builder: Any, table: Any, position: int) -> Any:
    """Load a word of a table. The word never changes while kernels run."""
    words = builder.bitcast(table, ir.IntType(64).as_pointer())
    load = builder.load(builder.gep(words, [ir.Constant(ir.IntType(64), position)]))
    load.set_metadata("invariant.load", builder.module.add_metadata([]))
    return load


@lower_getattr_generic(TableType)
def _lower_field(context: Any, builder: Any, kind: TableType, value: Any, name: str) -> Any:
    k = kind.position(name)
    field = kind.fields[k][1]
    address = _word(builder, value, WORDS * k)
    if not isinstance(field, types.Array):
        return builder.inttoptr(address, context.get_value_type(field))
    lengths = [_word(builder, value, WORDS * k + 1 + d) for d in range(field.ndim)]
    return _array(context, builder, field, address, lengths)


def _array(context: Any, builder: Any, kind: types.Array, address: Any, lengths: list[Any]) -> Any:
    array = make_array(kind)(context, builder)
    itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    strides = [itemsize]
    for length in reversed(lengths[1:]):
        strides.insert(0, builder.mul(length, strides[0]))
    pointer = builder.inttoptr(address, context.get_data_type(kind.dtype).as_pointer())
    populate_array(array, data=pointer, shape=lengths, strides=strides, itemsize=itemsize, meminfo=None)
    return array._getvalue()


def set_first_field(dtype: np.dtype) -> types.Array:
    """Type of an array of these records in which kernels may write `array[i] = value` to the first field."""
    name, kind = (dtype.names or ("",))[0], types.Array(numba.from_dtype(dtype), 1, "C")

    @infer_global(operator.setitem)
    class _SetFirst(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if args[0] == kind and all(isinstance(arg, types.Integer | types.Boolean) for arg in args[1:]):
                return signature(types.none, kind, types.intp, kind.dtype.typeof(name))
            return None

    @lower_builtin(operator.setitem, kind, types.intp, kind.dtype.typeof(name))
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = make_array(kind)(context, builder, args[0])
        record = cgutils.get_item_pointer(context, builder, kind, array, [args[1]], wraparound=True)
        first = builder.bitcast(record, context.get_value_type(sig.args[2]).as_pointer())
        builder.store(args[2], first)
        return context.get_dummy_value()

    return kind
