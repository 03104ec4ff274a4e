"""Estimates memory and work for training a drafter of a live target, before it starts."""

from collections.abc import Callable
from time import perf_counter
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from underpaint.runtime.live.model import LiveModel
from underpaint.training.distillation import DrafterSettings


class MachineSpeed(NamedTuple):
    """Speed of a machine: operations (multiplications and additions) and bytes read and written, per second."""

    operations: float
    bytes: float


class DrafterCosts(NamedTuple):
    """The estimated cost of training a drafter.

    Attributes:
        target_bytes: Size of the target's weights.
        drafter_parameters: Number of trained weights.
        drafter_bytes: Size of these weights, their gradients, averages and the optimiser's moments, in float32.
        batch_bytes: Size of a batch's logits and features over all passes: most of the memory of a step.
        drawing: Operations and bytes to draw one picture by plain decoding; lossless methods need less.
        step: Operations and bytes of one training step.
    """

    target_bytes: int
    drafter_parameters: int
    drafter_bytes: int
    batch_bytes: int
    drawing: MachineSpeed
    step: MachineSpeed

    def hours(self, speed: MachineSpeed, pictures: int, steps: int) -> tuple[float, float]:
        """Maximum hours to draw so many pictures, and minimum hours for so many steps, on a machine of this speed."""
        drawing, step = (
            max(work / rate for work, rate in zip(each, speed, strict=True)) for each in (self.drawing, self.step)
        )
        return pictures * drawing / 3600, steps * step / 3600


def drafter_costs(
    live: LiveModel, settings: DrafterSettings, eagle: Literal[1, 3] = 1, drafted_codes: int | None = None
) -> DrafterCosts:
    """Estimate memory and work to train a drafter of this target.

    Args:
        live: The target; only the number and size of its weights are read.
        settings: Batch and passes.
        eagle: 1 for EAGLE-1 and EAGLE-2, 3 for EAGLE-3.
        drafted_codes: Number of codes that an EAGLE-3 drafter can draft; None for all.
    """
    config, dim = live.decoder, live.decoder.dim
    drafted = drafted_codes or live.codes
    heads = config.heads * config.head_dim
    layer = 4 * dim * heads + 3 * dim * config.hidden + 3 * dim
    learnt = layer + 2 * dim**2
    if eagle == 3:  # wider projections, three features, a norm and a head
        learnt = layer + 3 * dim * heads + 3 * dim**2 + dim + drafted * dim
    weights = list(live.body.parameters())
    target = sum(weight.numel() * weight.element_size() for weight in weights)
    counted = sum(weight.numel() for weight in weights) + live.codes * dim
    positions, rows = config.cells + config.eol_tokens, 1 if live.uncond is None else 2
    batch = settings.batch * config.cells * (config.vocab_size + 2 * dim) * 4 * (settings.passes + 1)
    drawing = MachineSpeed(2.0 * counted * rows * positions, float(target * positions))
    forward, backward = 2 * counted, 6 * (learnt + (live.codes * dim if eagle == 1 else 0)) * settings.passes
    step = MachineSpeed(float(settings.batch * positions * (forward + backward)), float(target + learnt * 32))
    return DrafterCosts(target, learnt, learnt * 4 * 5, batch, drawing, step)


def measured_speed(like: Tensor) -> MachineSpeed:
    """Measure the speed of a tensor's device in the tensor's dtype: one large product, and one copy."""
    square = torch.ones(1024, 1024, dtype=like.dtype, device=like.device)
    many = torch.ones(1 << 24, dtype=torch.uint8, device=like.device)
    return MachineSpeed(2.0 * 1024**3 / _seconds(lambda: square @ square), 2.0 * many.numel() / _seconds(many.clone))


def _seconds(work: Callable[[], Tensor]) -> float:
    """Return the shortest time of a few runs."""
    times = []
    for _ in range(4):
        started = perf_counter()
        float(work().ravel()[0])  # waits for a GPU
        times.append(perf_counter() - started)
    return min(times)
