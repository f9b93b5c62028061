"""Triton's operations on scalars, blocks and pointers, for numba.

A block is a C-contiguous numpy array of one or two dimensions. A pointer is an address with the type of what
it points to; a block of pointers is a pair of a pointer and a block of offsets. bfloat16 exists in memory
only: it is read as float32 and rounded when it is written.

The types of results are Triton's: a literal takes the type of the other operand, and of two integers the
wider type is taken. One difference: plain integer arguments have 64 bits here, so that no offset overflows.
"""

# numba compares the signatures of an overload and its implementation: annotations would have to be equal.
# mypy: ignore-errors

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import errors
from numba.extending import intrinsic, models, overload, register_model

OPTIONS = {"nogil": True, "error_model": "numpy"}

VALUES: dict[str, types.Type] = {
    "int1": types.boolean,
    "int8": types.int8,
    "int16": types.int16,
    "int32": types.int32,
    "int64": types.int64,
    "uint8": types.uint8,
    "uint16": types.uint16,
    "uint32": types.uint32,
    "uint64": types.uint64,
    "bf16": types.float32,
    "fp32": types.float32,
    "fp64": types.float64,
}
MEMORY = {**VALUES, "int1": types.uint8, "bf16": types.uint16}


class Pointer(types.Type):
    """The address of an element; `kind` is a key of `VALUES`."""

    def __init__(self, kind: str):
        self.kind = kind
        super().__init__(name=f"Pointer({kind})")

    @property
    def value(self) -> types.Type:
        return VALUES[self.kind]


@register_model(Pointer)
class PointerModel(models.PrimitiveModel):
    def __init__(self, manager, pointer: Pointer):
        super().__init__(manager, pointer, ir.IntType(64))


# ---- memory


@intrinsic
def _read(context, pointer, index):
    memory = MEMORY[pointer.kind]

    def generate(context, builder, signature, arguments):
        address, offset = arguments
        start = builder.inttoptr(address, context.get_data_type(memory).as_pointer())
        return context.unpack_value(builder, memory, builder.gep(start, [offset]))

    return memory(pointer, types.int64), generate


@intrinsic
def _write(context, pointer, index, value):
    memory = MEMORY[pointer.kind]

    def generate(context, builder, signature, arguments):
        address, offset, value = arguments
        start = builder.inttoptr(address, context.get_data_type(memory).as_pointer())
        context.pack_value(builder, memory, value, builder.gep(start, [offset]))
        return context.get_dummy_value()

    return types.none(pointer, types.int64, memory), generate


@intrinsic
def _moved(context, pointer, index):
    size = MEMORY[pointer.kind].bitwidth // 8

    def generate(context, builder, signature, arguments):
        address, offset = arguments
        return builder.add(address, builder.mul(offset, ir.Constant(ir.IntType(64), size)))

    return pointer(pointer, types.int64), generate


@intrinsic
def _float_of(context, bits):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _bits_of(context, value):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


def _element(pointer, index): ...


@overload(_element, jit_options=OPTIONS)
def _element_typed(pointer, index):
    if pointer.kind == "int1":
        return lambda pointer, index: _read(pointer, index) != 0
    if pointer.kind == "bf16":
        return lambda pointer, index: _float_of(types.uint32(_read(pointer, index)) << 16)
    return lambda pointer, index: _read(pointer, index)


def _set_element(pointer, index, value): ...


@overload(_set_element, jit_options=OPTIONS)
def _set_element_typed(pointer, index, value):
    memory = MEMORY[pointer.kind]
    if pointer.kind == "bf16":

        def rounded(pointer, index, value):
            bits = _bits_of(types.float32(value))
            if (bits & 0x7FFFFFFF) > 0x7F800000:  # not a number
                _write(pointer, index, types.uint16(0x7FC0))
            else:
                to_even = types.uint32(0x7FFF) + ((bits >> 16) & types.uint32(1))
                _write(pointer, index, types.uint16(types.uint32(bits + to_even) >> 16))

        return rounded
    if isinstance(value, types.Boolean):
        return lambda pointer, index, value: _write(pointer, index, memory(1 if value else 0))
    if pointer.kind == "int1":
        return lambda pointer, index, value: _write(pointer, index, memory(1 if value != 0 else 0))
    return lambda pointer, index, value: _write(pointer, index, memory(value))


def load(pointer, mask, other):
    """Stand for `tl.load`; `mask` and `other` may be None."""


@overload(load, jit_options=OPTIONS)
def _load(pointer, mask, other):
    masked, filled = not _absent(mask), not _absent(other)
    if isinstance(pointer, Pointer):
        value = _constructor(pointer.value)
        if not masked:
            return lambda pointer, mask, other: _element(pointer, 0)
        if not filled:
            return lambda pointer, mask, other: _element(pointer, 0) if mask else value(0)
        return lambda pointer, mask, other: _element(pointer, 0) if mask else value(other)
    _expect_pointers(pointer)
    kind, dimensions = pointer[0].value, pointer[1].ndim
    value = _constructor(kind)

    if dimensions == 1:

        def load_1(pointer, mask, other):
            base, offsets = pointer
            out = np.empty(offsets.shape[0], kind)
            for i in range(offsets.shape[0]):
                if not masked or _at(mask, i):
                    out[i] = _element(base, types.int64(offsets[i]))
                elif filled:
                    out[i] = value(_at(other, i))
                else:
                    out[i] = value(0)
            return out

        return load_1

    def load_2(pointer, mask, other):
        base, offsets = pointer
        out = np.empty(offsets.shape, kind)
        for i in range(offsets.shape[0]):
            for j in range(offsets.shape[1]):
                if not masked or _at_2(mask, i, j):
                    out[i, j] = _element(base, types.int64(offsets[i, j]))
                elif filled:
                    out[i, j] = value(_at_2(other, i, j))
                else:
                    out[i, j] = value(0)
        return out

    return load_2


def store(pointer, value, mask):
    """Stand for `tl.store`; `mask` may be None."""


@overload(store, jit_options=OPTIONS)
def _store(pointer, value, mask):
    masked = not _absent(mask)
    if isinstance(pointer, Pointer):

        def store_0(pointer, value, mask):
            if not masked or mask:
                _set_element(pointer, 0, value)

        return store_0
    _expect_pointers(pointer)
    if pointer[1].ndim == 1:

        def store_1(pointer, value, mask):
            base, offsets = pointer
            for i in range(offsets.shape[0]):
                if not masked or _at(mask, i):
                    _set_element(base, types.int64(offsets[i]), _at(value, i))

        return store_1

    def store_2(pointer, value, mask):
        base, offsets = pointer
        for i in range(offsets.shape[0]):
            for j in range(offsets.shape[1]):
                if not masked or _at_2(mask, i, j):
                    _set_element(base, types.int64(offsets[i, j]), _at_2(value, i, j))

    return store_2


def atomic_add(pointer, value, mask):
    """Stand for `tl.atomic_add`, whose result no kernel uses. Programs run one after the other."""


def atomic_or(pointer, value, mask):
    """Stand for `tl.atomic_or`, as above."""


def _atomic(stub, combine):
    @overload(stub, jit_options=OPTIONS)
    def _typed(pointer, value, mask):
        masked = not _absent(mask)
        if isinstance(pointer, Pointer):

            def atomic_0(pointer, value, mask):
                if not masked or mask:
                    _set_element(pointer, 0, combine(_element(pointer, 0), value))

            return atomic_0
        _expect_pointers(pointer)

        def atomic_1(pointer, value, mask):
            base, offsets = pointer
            for i in range(offsets.shape[0]):
                if not masked or _at(mask, i):
                    where = types.int64(offsets[i])
                    _set_element(base, where, combine(_element(base, where), _at(value, i)))

        return atomic_1


# ---- blocks


def _at(block, i): ...


@overload(_at, jit_options=OPTIONS)
def _at_typed(block, i):
    if isinstance(block, types.Array):
        return lambda block, i: block[i]
    return lambda block, i: block


def _at_2(block, i, j): ...


@overload(_at_2, jit_options=OPTIONS)
def _at_2_typed(block, i, j):
    if isinstance(block, types.Array):
        return lambda block, i, j: block[i if block.shape[0] > 1 else 0, j if block.shape[1] > 1 else 0]
    return lambda block, i, j: block


def _size(block, other, axis): ...


@overload(_size, jit_options=OPTIONS)
def _size_typed(block, other, axis):
    """Return the length that two operands have together along an axis."""
    first, second = isinstance(block, types.Array), isinstance(other, types.Array)
    if first and second:
        return lambda block, other, axis: max(block.shape[axis], other.shape[axis])
    if first:
        return lambda block, other, axis: block.shape[axis]
    return lambda block, other, axis: other.shape[axis]


def arange(start, end):
    """Stand for `tl.arange`."""


@overload(arange, jit_options=OPTIONS)
def _arange(start, end):
    def block(start, end):
        out = np.empty(end - start, types.int32)
        for i in range(end - start):
            out[i] = types.int32(start + i)
        return out

    return block


def column(block):
    """Stand for `block[:, None]`."""


@overload(column, jit_options=OPTIONS)
def _column(block):
    return lambda block: block.reshape((block.shape[0], 1))


def row(block):
    """Stand for `block[None, :]`."""


@overload(row, jit_options=OPTIONS)
def _row(block):
    return lambda block: block.reshape((1, block.shape[0]))


def flat(block):
    """Stand for `block.reshape(SIZE)`."""


@overload(flat, jit_options=OPTIONS)
def _flat(block):
    return lambda block: block.reshape(block.size)


# ---- types of results


def _absent(value) -> bool:
    return value is None or isinstance(value, (types.NoneType, types.Omitted))


def _expect_pointers(pointer):
    if not (isinstance(pointer, types.BaseTuple) and isinstance(pointer[0], Pointer)):
        raise errors.TypingError(f"not a pointer: {pointer}")


def _is_pointer(operand) -> bool:
    return isinstance(operand, Pointer) or (
        isinstance(operand, types.BaseTuple) and isinstance(operand[0], Pointer)
    )


def _scalar(operand):
    return operand.dtype if isinstance(operand, types.Array) else types.unliteral(operand)


def _dimensions(*operands) -> int:
    return max(operand.ndim if isinstance(operand, types.Array) else 0 for operand in operands)


def _promoted(a, b):
    """Return the type in which two operands are computed."""
    first, second = _scalar(a), _scalar(b)
    if isinstance(a, types.IntegerLiteral) != isinstance(b, types.IntegerLiteral):
        literal, other = (first, second) if isinstance(a, types.IntegerLiteral) else (second, first)
        return literal if isinstance(other, types.Boolean) else other
    floats = [t for t in (first, second) if isinstance(t, types.Float)]
    if floats:
        return max(floats, key=lambda t: t.bitwidth)
    if isinstance(first, types.Boolean):
        return second
    if isinstance(second, types.Boolean):
        return first
    if first.bitwidth != second.bitwidth:
        return max(first, second, key=lambda t: t.bitwidth)
    return second if first.signed else first


def _arithmetic(a, b) -> tuple[Any, Any]:
    operand = _promoted(a, b)
    operand = types.int32 if isinstance(operand, types.Boolean) else operand
    return operand, operand


def _bitwise(a, b) -> tuple[Any, Any]:
    operand = _promoted(a, b)
    return operand, operand


def _division(a, b) -> tuple[Any, Any]:
    operand = _promoted(a, b)
    operand = operand if isinstance(operand, types.Float) else types.float32
    return operand, operand


def _comparison(a, b) -> tuple[Any, Any]:
    return _promoted(a, b), types.boolean


def _constructor(kind):
    return bool if isinstance(kind, types.Boolean) else kind


# ---- operations of two operands


def _binary(name: str, compute: Callable[[Any, Any], Any], kinds: Callable[[Any, Any], tuple[Any, Any]]):
    """Make a stub for an operation and its typed implementations."""

    def stub(a, b): ...

    stub.__name__ = stub.__qualname__ = name
    scalar = njit(inline="always", **OPTIONS)(compute)

    @overload(stub, prefer_literal=True, jit_options=OPTIONS)
    def typed(a, b):
        if _is_pointer(a) or _is_pointer(b):
            return _pointer_operation(name, a, b)
        operand, result = kinds(a, b)
        take, give = _constructor(operand), _constructor(result)
        dimensions = _dimensions(a, b)
        if dimensions == 0:
            return lambda a, b: give(scalar(take(a), take(b)))
        if dimensions == 1:

            def block_1(a, b):
                size = _size(a, b, 0)
                out = np.empty(size, result)
                for i in range(size):
                    out[i] = give(scalar(take(_at(a, i)), take(_at(b, i))))
                return out

            return block_1

        def block_2(a, b):
            rows, columns = _size(a, b, 0), _size(a, b, 1)
            out = np.empty((rows, columns), result)
            for i in range(rows):
                for j in range(columns):
                    out[i, j] = give(scalar(take(_at_2(a, i, j)), take(_at_2(b, i, j))))
            return out

        return block_2

    return stub


def _pointer_operation(name: str, a, b):
    if name == "add":
        if _is_pointer(b):
            return lambda a, b: add(b, a)
        if isinstance(a, Pointer):
            if isinstance(b, types.Array):
                return lambda a, b: (a, b)
            return lambda a, b: _moved(a, types.int64(b))
        if isinstance(b, types.Array):
            return lambda a, b: (a[0], add(a[1], b))
        return lambda a, b: (_moved(a[0], types.int64(b)), a[1])
    if name == "subtract":
        if isinstance(a, Pointer) and not isinstance(b, types.Array):
            return lambda a, b: _moved(a, -types.int64(b))
        if not isinstance(a, Pointer) and not isinstance(b, types.Array):
            return lambda a, b: (_moved(a[0], -types.int64(b)), a[1])
    raise errors.TypingError(f"{name} of {a} and {b}")


add = _binary("add", lambda a, b: a + b, _arithmetic)
subtract = _binary("subtract", lambda a, b: a - b, _arithmetic)
multiply = _binary("multiply", lambda a, b: a * b, _arithmetic)
divide = _binary("divide", lambda a, b: a / b, _division)
floor_divide = _binary("floor_divide", lambda a, b: a // b, _arithmetic)
remainder = _binary("remainder", lambda a, b: a % b, _arithmetic)
left_shift = _binary("left_shift", lambda a, b: a << b, _arithmetic)
right_shift = _binary("right_shift", lambda a, b: a >> b, _arithmetic)
bit_and = _binary("bit_and", lambda a, b: a & b, _bitwise)
bit_or = _binary("bit_or", lambda a, b: a | b, _bitwise)
bit_xor = _binary("bit_xor", lambda a, b: a ^ b, _bitwise)
equal = _binary("equal", lambda a, b: a == b, _comparison)
not_equal = _binary("not_equal", lambda a, b: a != b, _comparison)
less = _binary("less", lambda a, b: a < b, _comparison)
less_equal = _binary("less_equal", lambda a, b: a <= b, _comparison)
greater = _binary("greater", lambda a, b: a > b, _comparison)
greater_equal = _binary("greater_equal", lambda a, b: a >= b, _comparison)
maximum = _binary("maximum", lambda a, b: a if a > b or b != b else b, _arithmetic)
minimum = _binary("minimum", lambda a, b: a if a < b or b != b else b, _arithmetic)

_atomic(atomic_add, add)
_atomic(atomic_or, bit_or)


# ---- operations of one operand


def _unary(name: str, compute: Callable[[Any], Any], kinds: Callable[[Any], tuple[Any, Any]]):
    """Make a stub for an operation; `kinds` tells the type it is computed in and that of its result."""

    def stub(a): ...

    stub.__name__ = stub.__qualname__ = name
    scalar = njit(inline="always", **OPTIONS)(compute)

    @overload(stub, jit_options=OPTIONS)
    def typed(a):
        operand, result = kinds(_scalar(a))
        take, give = _constructor(operand), _constructor(result)
        dimensions = _dimensions(a)
        if dimensions == 0:
            return lambda a: give(scalar(take(a)))
        if dimensions == 1:

            def block_1(a):
                out = np.empty(a.shape[0], result)
                for i in range(a.shape[0]):
                    out[i] = give(scalar(take(a[i])))
                return out

            return block_1

        def block_2(a):
            out = np.empty(a.shape, result)
            for i in range(a.shape[0]):
                for j in range(a.shape[1]):
                    out[i, j] = give(scalar(take(a[i, j])))
            return out

        return block_2

    return stub


def _same(kind) -> tuple[Any, Any]:
    return kind, kind


def _in_floats(kind) -> tuple[Any, Any]:
    kind = kind if isinstance(kind, types.Float) else types.float32
    return kind, kind


def _to(name: str):
    return _unary(f"to_{name}", lambda a: a, lambda kind: (kind, VALUES[name]))


exp = _unary("exp", lambda a: math.exp(a), _in_floats)
log = _unary("log", lambda a: np.log(a), _in_floats)
log1p = _unary("log1p", lambda a: np.log1p(a), _in_floats)
sigmoid = _unary("sigmoid", lambda a: 1 / (1 + math.exp(-a)), _in_floats)
negative = _unary("negative", lambda a: -a, _same)
absolute = _unary("absolute", lambda a: abs(a), _same)
zeros_like = _unary("zeros_like", lambda a: 0, _same)
to_int8, to_int16, to_int32, to_int64 = _to("int8"), _to("int16"), _to("int32"), _to("int64")
to_uint8, to_uint16, to_uint32, to_uint64 = _to("uint8"), _to("uint16"), _to("uint32"), _to("uint64")
to_fp32, to_fp64 = _to("fp32"), _to("fp64")
to_int1 = _unary("to_int1", lambda a: a != 0, lambda kind: (kind, types.boolean))
logical_not = _unary("logical_not", lambda a: not a, lambda kind: (types.boolean, types.boolean))
_complement = _unary("_complement", lambda a: ~a, _same)


def invert(a):
    """Stand for `~a`."""


@overload(invert, jit_options=OPTIONS)
def _invert(a):
    if isinstance(_scalar(a), types.Boolean):
        return lambda a: logical_not(a)
    return lambda a: _complement(a)


def _to_pointer(kind: str):
    pointer = Pointer(kind)

    @intrinsic
    def to_pointer(context, address):
        def generate(context, builder, signature, arguments):
            return arguments[0]

        return pointer(types.int64), generate

    return to_pointer


TO_POINTER = {kind: _to_pointer(kind) for kind in VALUES}
globals().update({f"to_pointer_{kind}": made for kind, made in TO_POINTER.items()})


def where(condition, a, b):
    """Stand for `tl.where`."""


@overload(where, prefer_literal=True, jit_options=OPTIONS)
def _where(condition, a, b):
    result = _promoted(a, b)
    value = _constructor(result)
    dimensions = _dimensions(condition, a, b)
    if dimensions == 0:
        return lambda condition, a, b: value(a) if condition else value(b)
    if dimensions == 1:

        def where_1(condition, a, b):
            size = _size_of_three(condition, a, b, 0)
            out = np.empty(size, result)
            for i in range(size):
                out[i] = value(_at(a, i)) if _at(condition, i) else value(_at(b, i))
            return out

        return where_1

    def where_2(condition, a, b):
        rows, columns = _size_of_three(condition, a, b, 0), _size_of_three(condition, a, b, 1)
        out = np.empty((rows, columns), result)
        for i in range(rows):
            for j in range(columns):
                out[i, j] = value(_at_2(a, i, j)) if _at_2(condition, i, j) else value(_at_2(b, i, j))
        return out

    return where_2


def _size_of_three(a, b, c, axis): ...


@overload(_size_of_three, jit_options=OPTIONS)
def _size_of_three_typed(a, b, c, axis):
    blocks = [isinstance(operand, types.Array) for operand in (a, b, c)]
    if blocks[1] or blocks[2]:
        if blocks[0]:
            return lambda a, b, c, axis: max(a.shape[axis], _size(b, c, axis))
        return lambda a, b, c, axis: _size(b, c, axis)
    return lambda a, b, c, axis: a.shape[axis]


# ---- whole blocks


def full(shape, value):
    """Stand for `tl.full` of one dimension; `value` has the type of the block."""


@overload(full, jit_options=OPTIONS)
def _full(shape, value):
    kind = _scalar(value)

    def block(shape, value):
        out = np.empty(shape, kind)
        out[:] = value
        return out

    return block


def total(block):
    """Stand for `tl.sum`."""


@overload(total, jit_options=OPTIONS)
def _total(block):
    if not isinstance(block, types.Array):
        return lambda block: block
    kind = block.dtype
    if isinstance(kind, types.Boolean) or (isinstance(kind, types.Integer) and kind.bitwidth < 32):
        kind = types.int32

    def sum_(block):
        out = kind(0)
        for value in block.flat:
            out = kind(out + kind(value))
        return out

    return sum_


def largest(block):
    """Stand for `tl.max`."""


@overload(largest, jit_options=OPTIONS)
def _largest(block):
    return lambda block: block[_extreme(block, True)]


def smallest(block):
    """Stand for `tl.min`."""


@overload(smallest, jit_options=OPTIONS)
def _smallest(block):
    return lambda block: block[_extreme(block, False)]


def argmax(block):
    """Stand for `tl.argmax`, which takes the first of equals."""


@overload(argmax, jit_options=OPTIONS)
def _argmax(block):
    return lambda block: types.int32(_extreme(block, True))


def largest_with_index(block):
    """Stand for `tl.max(block, axis=0, return_indices=True)`."""


@overload(largest_with_index, jit_options=OPTIONS)
def _largest_with_index(block):
    def both(block):
        index = _extreme(block, True)
        return block[index], types.int32(index)

    return both


def _extreme(block, upper): ...


@overload(_extreme, jit_options=OPTIONS)
def _extreme_typed(block, upper):
    if block.ndim != 1:
        raise errors.TypingError("reductions of blocks with two dimensions")

    def index(block, upper):
        best = 0
        for i in range(1, block.shape[0]):
            if (block[i] > block[best]) if upper else (block[i] < block[best]):
                best = i
        return best

    return index


def cumulative_sum(block):
    """Stand for `tl.cumsum`."""


@overload(cumulative_sum, jit_options=OPTIONS)
def _cumulative_sum(block):
    kind = types.int32 if isinstance(block.dtype, types.Boolean) else block.dtype

    def sums(block):
        out = np.empty(block.shape[0], kind)
        so_far = kind(0)
        for i in range(block.shape[0]):
            so_far = kind(so_far + kind(block[i]))
            out[i] = so_far
        return out

    return sums


def random(seed, offset):
    """Stand for `tl.rand` of a scalar: Philox with ten rounds, as a number from 0 to 1."""


@overload(random, jit_options=OPTIONS)
def _random(seed, offset):
    if _dimensions(seed, offset):
        raise errors.TypingError("tl.rand of a block")

    def uniform(seed, offset):
        mask = types.uint64(0xFFFFFFFF)
        whole_seed, whole_offset = types.uint64(seed), types.uint64(offset)
        key_0, key_1 = whole_seed & mask, (whole_seed >> types.uint64(32)) & mask
        c0, c1 = whole_offset & mask, (whole_offset >> types.uint64(32)) & mask
        c2, c3 = types.uint64(0), types.uint64(0)
        for _ in range(10):
            low, high = types.uint64(0xD2511F53) * c0, types.uint64(0xCD9E8D57) * c2
            c0, c2 = (
                ((high >> types.uint64(32)) ^ c1 ^ key_0) & mask,
                ((low >> types.uint64(32)) ^ c3 ^ key_1) & mask,
            )
            c1, c3 = high & mask, low & mask
            key_0 = (key_0 + types.uint64(0x9E3779B9)) & mask
            key_1 = (key_1 + types.uint64(0xBB67AE85)) & mask
        signed = types.int64(types.int32(types.uint32(c0)))
        positive = -signed - 1 if signed < 0 else signed
        return types.float32(types.float32(positive) * types.float32(4.6566127342e-10))

    return uniform
