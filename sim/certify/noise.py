"""Given noise for code that draws its own: `random`, NumPy and PyTorch return values made from given uniforms."""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import index_of

_INHERITED = object()
"""Marks a function that a class inherits from its base."""


class NoiseExhausted(RuntimeError):
    """Code requested more noise than was given."""


@dataclass(slots=True)
class _Script:
    """Returns given uniforms in order; with a generator as source, without end."""

    name: str
    source: "Sequence[float] | FloatArray | np.random.Generator"
    place: int = field(default=0)

    def take(self, count: int) -> FloatArray:
        if isinstance(self.source, np.random.Generator):
            return self.source.random(count)
        if self.place + count > len(self.source):
            raise NoiseExhausted(
                f"it asked for {self.place + count} {self.name}, the layout has {len(self.source)}; "
                "draw once a decision, or hand scripted_noise a generator and judge it --as seeded"
            )
        self.place += count
        return np.array(self.source[self.place - count : self.place], dtype=np.float64)


@contextmanager
def scripted_noise(
    tests: "Sequence[float] | FloatArray | np.random.Generator",
    draws: "Sequence[float] | FloatArray | np.random.Generator | None" = None,
) -> Iterator[None]:
    """Replace the random draws of `random`, `numpy.random` and PyTorch within a `with` block.

    The block replaces `random.random`, `numpy.random.random`, `rand`, `uniform` and `choice`. If PyTorch is imported,
    it replaces `torch.rand`, `rand_like`, `Tensor.uniform_`, `Tensor.exponential_` and `multinomial` of one sample.

    Args:
        tests: Uniforms in [0, 1), used in order, or a generator of them.
        draws: Uniforms for `multinomial` and `choice`, one inverse-CDF draw per row. Default: from `tests` too.

    Raises:
        NoiseExhausted: Within the block, if code requests more noise than was given.
    """
    uniforms = _Script("uniforms", tests)
    inverse = uniforms if draws is None else _Script("draws", draws)
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [(random, "random", lambda: float(uniforms.take(1)[0]))]
    replaced += [(np.random, name, function) for name, function in _numpy_functions(uniforms, inverse).items()]
    torch = sys.modules.get("torch")
    if torch is not None:
        replaced += _torch_functions(torch, uniforms, inverse)
    # unittest.mock would take half a millisecond here, and a certificate requests 100,000 decisions.
    originals = [(place, name, vars(place).get(name, _INHERITED)) for place, name, _ in replaced]
    try:
        for place, name, function in replaced:
            setattr(place, name, function)
        yield
    finally:
        for place, name, function in originals:
            if function is _INHERITED:
                delattr(place, name)
            else:
                setattr(place, name, function)


def _numpy_functions(uniforms: _Script, inverse: _Script) -> dict[str, Callable[..., Any]]:
    def shaped(size: Any = None) -> Any:
        if size is None:
            return float(uniforms.take(1)[0])
        return uniforms.take(int(np.prod(size))).reshape(size)

    def uniform(low: float = 0.0, high: float = 1.0, size: Any = None) -> Any:
        return low + (high - low) * shaped(size)

    def choice(a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
        values = np.arange(a) if isinstance(a, int) else np.asarray(a)
        if size not in (None, 1, (1,)):
            raise NoiseExhausted(f"numpy.random.choice: expected one draw, got size {size}; draw one at a time")
        weights = np.ones(len(values)) if p is None else np.asarray(p, dtype=np.float64)
        value = values[index_of(weights, float(inverse.take(1)[0]))]
        return value if size is None else np.array([value])

    return {"random": shaped, "rand": lambda *size: shaped(size or None), "uniform": uniform, "choice": choice}


def _torch_functions(torch: Any, uniforms: _Script, inverse: _Script) -> list[tuple[Any, str, Callable[..., Any]]]:
    def filled(shape: Any, dtype: Any, device: Any) -> Any:
        count = int(np.prod(tuple(shape))) if len(shape) else 1
        values = torch.from_numpy(uniforms.take(count)).to(dtype or torch.float32)
        return values.reshape(tuple(shape)).to(device)

    # Parameters have PyTorch's names, as code may pass them by keyword.
    def rand(*shape: Any, size: Any = None, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        if size is None:
            size = shape[0] if shape and not isinstance(shape[0], int) else shape
        return filled(size, dtype, device)

    def rand_like(input: Any, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        return filled(input.shape, dtype or input.dtype, device or input.device)

    def uniform_(self: Any, low: float = 0.0, to: float = 1.0, **_: Any) -> Any:
        return self.copy_(low + (to - low) * filled(self.shape, self.dtype, self.device))

    def exponential_(self: Any, lambd: float = 1.0, **_: Any) -> Any:
        samples = -np.log1p(-uniforms.take(self.numel())) / lambd
        samples = np.maximum(samples, np.finfo(np.float32).tiny)  # PyTorch never gives 0
        return self.copy_(torch.from_numpy(samples).reshape(self.shape))

    def multinomial(input: Any, num_samples: int = 1, replacement: bool = False, **_: Any) -> Any:
        if num_samples != 1:
            raise NoiseExhausted(f"multinomial: expected one sample, got {num_samples}; draw one at a time")
        rows = input.detach().double().cpu().numpy().reshape(-1, input.shape[-1])
        indices = [index_of(row, float(uniform)) for row, uniform in zip(rows, inverse.take(len(rows)), strict=True)]
        return torch.tensor(indices, device=input.device).reshape((*input.shape[:-1], 1))

    return [
        (torch, "rand", rand),
        (torch, "rand_like", rand_like),
        (torch, "multinomial", multinomial),
        (torch.Tensor, "multinomial", multinomial),
        (torch.Tensor, "uniform_", uniform_),
        (torch.Tensor, "exponential_", exponential_),
    ]
