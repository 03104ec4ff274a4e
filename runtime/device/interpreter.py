"""Shortcuts for Triton's interpreter, which otherwise repeats the same work at every operation of a kernel.

Launches are interpreted if there is no CUDA device. Triton repeats patches of its language, lookups of types, shapes
and checks of operands at every operation, and computes 64-bit results that nothing reads. This module caches them, and
computes the common operators and casts directly; Triton handles all other cases. The kernels' results do not change.
All of this is for Triton 3.9, with which the tests run; with any other version nothing is changed.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np

VERSION: Final = "3.9."
_PATCHED: Final[set[Any]] = set()
"""Modules and classes that the interpreter has patched in this launch."""
_CONSTANTS: Final[dict[str, tuple[Any, type]]] = {
    "int32": (np.int32, int),
    "int64": (np.int64, int),
    "uint64": (np.uint64, int),
    "fp32": (np.float32, float),
    "fp64": (np.float64, float),
}
"""NumPy's types by Triton's names, each with the type of Python's numbers that it takes as operands."""
_BITS: Final = {"__and__": np.bitwise_and, "__or__": np.bitwise_or, "__xor__": np.bitwise_xor}
_COMPARISONS: Final = {
    "__lt__": np.less,
    "__le__": np.less_equal,
    "__gt__": np.greater,
    "__ge__": np.greater_equal,
    "__eq__": np.equal,
    "__ne__": np.not_equal,
}
_OPERATORS: Final = {"__add__": np.add, "__sub__": np.subtract, "__mul__": np.multiply, **_BITS, **_COMPARISONS}


def remember() -> None:
    """Install the shortcuts. Call it once per process, before any kernel is launched."""
    _remember_numpy_types()
    _remember_blocks()
    _unwrap_at_once()
    _leave_operands_that_agree()
    _patch_once_a_launch()


def _patch_once_a_launch() -> None:
    """Find what to patch once per process, and patch it once per launch, not at every call of a helper."""
    from triton import language
    from triton.language import core
    from triton.runtime import interpreter

    class Scope(interpreter._LangPatchScope):  # type: ignore[misc]
        def restore(self) -> None:
            super().restore()
            _PATCHED.clear()

    @cache
    def modules(function: Any) -> list[Any]:
        return [one for one in (language, core) if any(one is value for value in function.__globals__.values())]

    @cache
    def builtins(owner: Any) -> list[tuple[str, Any]]:
        calls = [(name, _with_semantics(member)) for name, member in inspect.getmembers(owner, core.is_builtin)]
        return [(name, _operator(name, call) if owner is core.tensor else call) for name, call in calls]

    def patch_builtins(owner: Any, scope: Any) -> None:
        if owner not in _PATCHED:
            _PATCHED.add(owner)
            for name, call in builtins(owner):
                scope.set_attr(owner, name, call)

    def patch(function: Any) -> Any:
        scope = Scope()
        assert modules(function), "triton.language must be visible from within jit'd function"
        for module in modules(function):
            if module in _PATCHED:
                continue
            for owner in (module, core.tensor, language.math, core.tensor_descriptor_base):
                patch_builtins(owner, scope)
            interpreter._patch_lang_tensor(core.tensor, scope)
            interpreter._patch_lang_core(module, scope)
        return scope

    interpreter._patch_lang = patch


def _with_semantics(member: Any) -> Callable[..., Any]:
    """Return a builtin bound to the interpreter's semantics."""
    from triton.runtime import interpreter

    function, semantic = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

    def call(*args: Any, **named: Any) -> Any:
        named["_semantic"] = semantic
        return function(*args, **named)

    return call


def _operator(name: str, others: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator of tensors that computes the commonest cases at once, and calls `others` for the rest.

    These have operands of one type, int32 with int64, or a pointer with an offset; their shapes agree, or one operand
    is a scalar. NumPy broadcasts a scalar itself, so it is not repeated first.
    """
    from triton.language import core
    from triton.runtime import interpreter

    if name not in _OPERATORS:
        return others
    builder, semantic = interpreter.interpreter_builder, interpreter.interpreter_semantic
    compute, compares, adds = _OPERATORS[name], name in _COMPARISONS, name == "__add__"
    kinds = {"int32", "int64", "uint64"} | ({"int1"} if name in _BITS else {"fp32", "fp64"})
    offsets = core.int32, core.int64
    scalar = core.tensor(None, core.int32).shape

    def operate(self: Any, other: Any) -> Any:
        kind, type_, other_type = self.dtype, self.type, type(other)
        pointer = adds and type(kind) is core.pointer_type
        if (kind.name not in kinds and not pointer) or builder.options.debug:
            return others(self, other)
        if other_type is core.tensor:
            left, right = self, other
            if pointer:
                if right.dtype is not offsets[0] and right.dtype is not offsets[1]:
                    return others(self, other)
            elif right.dtype is not kind:
                if kind not in offsets or right.dtype not in offsets or kind == right.dtype:
                    return others(self, other)
                left, right = semantic.cast(left, offsets[1]), semantic.cast(right, offsets[1])
                type_ = left.type
            if left.shape is not right.shape:
                # Triton repeats a scalar condition in the type of the numbers that it compared.
                if kind.name == "int1" or (left.shape is not scalar and right.shape is not scalar):
                    return others(self, other)
                if left.shape is scalar:
                    type_ = right.type.with_element_ty(kind) if pointer else right.type
            left, right = left.handle, right.handle
        else:
            if other_type is core.constexpr:
                other = other.value
                other_type = type(other)
            number = offsets[0] if pointer else kind
            dtype, allowed = _CONSTANTS.get(number.name, (None, None))
            if other_type is not allowed:
                return others(self, other)
            try:
                left, right = self.handle, interpreter.TensorHandle(np.array([other], dtype=dtype), number)
            except OverflowError:
                return others(self, other)
        if pointer:
            return core.tensor(builder.create_addptr(left, right), type_)
        return core.tensor(
            builder.binary_op(left, right, compute), type_.with_element_ty(core.int1) if compares else type_
        )

    return operate


def _remember_numpy_types() -> None:
    from triton.language import core
    from triton.runtime import interpreter

    find, address = interpreter._get_np_dtype, np.dtype(np.uint64)
    dtypes: dict[str, np.dtype[Any]] = {}

    def numpy_type(kind: Any) -> np.dtype[Any]:
        scalar = kind.element_ty if isinstance(kind, core.block_type) else kind
        if isinstance(scalar, core.pointer_type):
            return address
        if scalar.name not in dtypes:
            dtypes[scalar.name] = find(scalar)
        return dtypes[scalar.name]

    interpreter._get_np_dtype = numpy_type


def _remember_blocks() -> None:
    """Cache block types by element and shape, and the shape attributes of tensors: none of them is ever changed.

    Only shapes of integers in a list or in Triton's tuple are cached; Triton itself handles all others.
    """
    from triton.language import core

    new_block, new_tensor = core.block_type.__init__, core.tensor.__init__
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def sizes_of(shape: Any) -> tuple[int, ...] | None:
        if not isinstance(shape, list | core.tuple):
            return None
        sizes = tuple(one.value if isinstance(one, core.constexpr) else one for one in shape)
        return sizes if all(type(one) is int for one in sizes) else None

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = sizes_of(shape)
        if sizes is None:
            new_block(self, element_ty, shape)
            return
        space = element_ty.address_space if isinstance(element_ty, core.pointer_type) else None
        key = (element_ty.name, space, sizes)
        if key not in blocks:
            new_block(self, element_ty, shape)
            blocks[key] = dict(self.__dict__)
        self.__dict__.update(blocks[key])

    def tensor(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape.values) if isinstance(type, core.block_type) else ()
        if key not in shapes:
            new_tensor(self, handle, type)
            shapes[key] = (self.shape, self.numel)
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shapes[key]

    core.block_type.__init__ = block
    core.tensor.__init__ = tensor


def _unwrap_at_once() -> None:
    """Return values that are plain by their type at once, without testing for each kind of constant."""
    from triton.language import core

    unwrap = core._unwrap_if_constexpr
    plain = frozenset({int, float, bool, type(None), core.tensor, core.dtype, core.block_type, core.pointer_type})

    def unwrapped(value: Any) -> Any:
        return value if type(value) in plain else unwrap(value)

    core._unwrap_if_constexpr = unwrapped


def _leave_operands_that_agree() -> None:
    """Skip broadcasts between equal shapes and casts to the same type, and check for overflow only in debug mode.

    Without the option `debug`, Triton computes in 64 bits whether a result overflows, and then drops the answer. Casts
    from bits, and between numbers of 32 and 64 bits, are NumPy's.
    """
    from triton.language import core
    from triton.language.semantic import TritonSemantic

    broadcast, cast = TritonSemantic.broadcast_impl_value, TritonSemantic.cast
    find_overflow = TritonSemantic.binary_op_sanitize_overflow_impl
    scalar = core.tensor(None, core.int32).shape

    def splat(self: Any, value: Any, like: Any) -> Any:
        type_ = like.with_element_ty(value.dtype)
        return core.tensor(self.builder.create_splat(type_, value.handle), type_)

    def broadcast_if_different(self: Any, lhs: Any, rhs: Any) -> Any:
        if lhs.shape is rhs.shape:
            return lhs, rhs
        if rhs.shape is scalar:
            return lhs, splat(self, rhs, lhs.type)
        if lhs.shape is scalar:
            return splat(self, lhs, rhs.type), rhs
        return broadcast(self, lhs, rhs)

    def cast_if_different(self: Any, input: Any, dst_ty: Any, fp_downcast_rounding: str | None = None) -> Any:
        kind, to = input.dtype, dst_ty.scalar
        if kind is to:
            return input
        if fp_downcast_rounding is None and to.name in _CONSTANTS and (kind.name == "int1" or kind.name in _CONSTANTS):
            type_ = input.type.with_element_ty(to)
            return core.tensor(self.builder.cast_impl(input.handle, type_), type_)
        return cast(self, input, dst_ty, fp_downcast_rounding)

    def overflow_in_debug(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
        if self.builder.options.debug:
            find_overflow(self, lhs, rhs, binary_op)

    TritonSemantic.broadcast_impl_value = broadcast_if_different
    TritonSemantic.cast = cast_if_different
    TritonSemantic.binary_op_sanitize_overflow_impl = overflow_in_debug
