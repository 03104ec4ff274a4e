"""A small resumable training loop: seeded, limited by steps, minutes or SIGINT, and continued from its checkpoint.

A recipe provides a module, a loss for a step number (its batch must depend only on the seed and the step), and a
validation. The loop handles the optimiser, the schedule, averaging, checkpoints and the log.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from underpaint.artifacts.files import replacing
from underpaint.artifacts.lock import folder_lock
from underpaint.models.checkpoints import load_whole
from underpaint.training.history import RecipeInputs, refuse_changed, refuse_other_origin, runs_with
from underpaint.training.interrupt import stop_on_interrupt
from underpaint.training.muon import Optimisers
from underpaint.training.step_log import StepLog

CHECKPOINT = "checkpoint.pt"
HEADS = ("output.weight", "head.weight", "conv_out.weight")
"""Input and output matrices of a network, which AdamW trains."""
UNTIL_TIME: Final = 10_000_000
"""A number of steps that no run reaches, so that its minutes end it."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Length and rates of a training: `learning_rate` is AdamW's peak, `matrix_rate` is Muon's.

    The schedule (linear warm-up, then cosine to `final_rate` of the peak) follows `steps` or `minutes`, whichever has
    progressed further, so a run limited by time also ends with a small rate. If `minutes` is None, only steps count,
    which makes a run repeatable.
    """

    steps: int
    learning_rate: float
    matrix_rate: float = 0.02
    minutes: float | None = None
    warmup_steps: int = 100
    final_rate: float = 0.02
    weight_decay: float = 0.01
    beta2: float = 0.99
    clip_norm: float = 1.0
    ema_decay: float = 0.0
    log_every: int = 50
    validate_every: int = 500
    checkpoint_seconds: float = 120.0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.learning_rate <= 0 or not 0 <= self.ema_decay < 1:
            raise ValueError(
                "steps must be >= 1, learning_rate > 0 and 0 <= ema_decay < 1; "
                f"got {self.steps}, {self.learning_rate} and {self.ema_decay}"
            )
        if self.minutes is not None and self.minutes <= 0:
            raise ValueError(f"minutes must be positive; got {self.minutes}")


class Loss(NamedTuple):
    """A scalar to minimise, and figures to log."""

    value: Tensor
    figures: Mapping[str, float | Tensor]


class TrainingResult(NamedTuple):
    """The result of a run: total number of steps, whether it is finished, and the last validation."""

    step: int
    finished: bool
    validation: dict[str, float]


def save_atomically(payload: Mapping[str, Any], path: Path) -> None:
    """Save with torch to a temporary file, then replace `path`, so that a reader never sees an incomplete file.

    Raises OSError if the disk is full or not writable; the previous file at `path` is kept.
    """
    try:
        with replacing(path) as file:
            torch.save(dict(payload), file)
    except (OSError, RuntimeError) as error:
        outcome = "the checkpoint before it is kept" if path.exists() else "nothing was kept before"
        raise OSError(f"{path} could not be written ({error}): {outcome}. Free some space and run again") from error


def progress_of(settings: LoopSettings, step: int, elapsed_seconds: float) -> float:
    """Return how much of a run is over, by steps or minutes, whichever has progressed further; 1 or more at its end."""
    timed = 0.0 if settings.minutes is None else elapsed_seconds / (60 * settings.minutes)
    return max(step / settings.steps, timed)


def rate_share(settings: LoopSettings, step: int, elapsed_seconds: float) -> float:
    """Return the rates at a step, as a fraction of the peak rates."""
    warm = warm_rate_share(settings, progress_of(settings, step, elapsed_seconds))
    return min(1.0, (step + 1) / max(1, settings.warmup_steps)) * warm


def warm_rate_share(settings: LoopSettings, progress: float) -> float:
    """Return the rates after the warm-up, as a fraction of the peak rate, at a progress from 0 to 1."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return settings.final_rate + (1 - settings.final_rate) * cosine


class Averager:
    """An exponential moving average of a module's floating-point state; a no-op copy at decay 0."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.module = module
        self.state = {name: value.detach().clone() for name, value in module.state_dict().items()}

    def update(self, step: int) -> None:
        """Move towards the module's weights; early steps use a smaller decay."""
        decay = min(self.decay, (1 + step) / (10 + step))
        current = self.module.state_dict()
        names = [name for name, value in current.items() if value.is_floating_point()]
        torch._foreach_lerp_(
            [self.state[name] for name in names], [current[name].detach() for name in names], 1 - decay
        )
        for name in current.keys() - names:
            self.state[name].copy_(current[name])

    def weights(self) -> dict[str, Tensor]:
        """Return the averaged state, or the module's own at decay 0."""
        return self.state if self.decay > 0 else self.module.state_dict()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Run the module with the averaged weights, in eval mode."""
        raw_weights = {name: value.clone() for name, value in self.module.state_dict().items()}
        was_training = self.module.training
        self.module.load_state_dict(self.weights())
        self.module.eval()
        try:
            yield
        finally:
            self.module.load_state_dict(raw_weights)
            self.module.train(was_training)


def _resume(path: Path, config: Mapping[str, Any], inputs: RecipeInputs, device: torch.device) -> dict[str, Any] | None:
    if not path.exists():
        return None
    saved = load_whole(path, device)
    if saved["config"] != dict(config):
        raise ValueError(
            f"{path} holds another model ({saved['config']}); wanted {dict(config)}. Choose another --out."
        )
    refuse_other_origin(path, saved, inputs)
    return saved


def train(
    model: nn.Module,
    loss: Callable[[int], Loss],
    out: Path,
    settings: LoopSettings,
    config: Mapping[str, Any],
    *,
    validate: Callable[[], dict[str, float]] | None = None,
    after_step: Callable[[int], None] | None = None,
    at_share: Callable[[float], None] | None = None,
    inputs: RecipeInputs | None = None,
    title: str = "training",
) -> TrainingResult:
    """Train `model` in place and save `out/checkpoint.pt`; a second call continues from it.

    The checkpoint has: "config" (the given mapping), "model" (averaged weights, which loaders read), "raw",
    "optimizer", "step", "elapsed_seconds", "validation", "settings" and "runs" (`training.history`). On return
    the module has the averaged weights.

    Args:
        model: Parameters that require a gradient are trained.
        loss: Returns the loss of a step number; the recipe seeds it.
        out: Folder of the run.
        settings: Length and learning rates.
        config: Plain mapping with everything that a loader needs to rebuild the module.
        validate: Returns figures; called with the averaged weights in place.
        after_step: Called after each optimiser step.
        at_share: Called before each loss with the step's rates as a fraction of the peak rates.
        inputs: The recipe's inputs, for the checkpoint.
        title: Name on the progress bar.

    Raises:
        ValueError: `out` has a checkpoint with another config, seed or start, or a finished run with other inputs.
        FolderInUse: Another process trains in `out`.
        FloatingPointError: The loss is not finite at a step that is logged, validated or saved; the checkpoint before
            it is kept.
    """
    inputs = inputs or RecipeInputs()
    with folder_lock(out), stop_on_interrupt() as interrupted:
        path = out / CHECKPOINT
        device = next(model.parameters()).device
        optimiser = Optimisers(
            model, settings.learning_rate, settings.matrix_rate, settings.beta2, settings.weight_decay, HEADS
        )
        step, before = 0, 0.0
        validation: dict[str, float] = {}
        saved = _resume(path, config, inputs, device)
        if saved is not None:
            model.load_state_dict(saved["raw"])
            optimiser.load_state_dict(saved["optimizer"])
            step, before, validation = saved["step"], saved["elapsed_seconds"], saved["validation"]
            if progress_of(settings, step, before) >= 1:
                refuse_changed(path, saved, inputs)
        averager = Averager(model, settings.ema_decay)
        if saved is not None:
            averager.state = {name: value.clone() for name, value in saved["model"].items()}
        first, runs = step, runs_with(saved, inputs, asdict(settings))
        log, started = StepLog(title), time.monotonic()
        saved_at = started

        def elapsed() -> float:
            return before + time.monotonic() - started

        def save() -> None:
            payload: dict[str, Any] = {"config": dict(config), "model": averager.weights(), "raw": model.state_dict()}
            payload |= {"optimizer": optimiser.state_dict(), "step": step, "elapsed_seconds": elapsed()}
            payload |= {"validation": validation, "settings": asdict(settings)}
            payload |= {"runs": (saved or {}).get("runs", []) if step == first else runs}
            save_atomically(payload, path)

        def finite(value: Tensor) -> float:
            """Return the loss of the last step; raises FloatingPointError unless it is finite."""
            number = float(value.detach())
            if not math.isfinite(number):
                raise FloatingPointError(
                    f"the loss at step {step} is {number}, expected a finite number; these weights are not saved: "
                    "lower the learning rates, and run again"
                )
            return number

        def progress() -> float:
            return progress_of(settings, step, elapsed())

        model.train()
        last: Tensor | None = None
        try:
            while progress() < 1 and not interrupted.is_set():
                now = rate_share(settings, step, elapsed())
                optimiser.set_share(now)
                if at_share is not None:
                    at_share(now)
                value, figures = loss(step)
                optimiser.zero_grad()
                torch.autograd.backward(value)
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
                optimiser.step()
                if settings.ema_decay > 0:
                    averager.update(step)
                if after_step is not None:
                    after_step(step)
                step += 1
                last = value.detach()
                if step % settings.log_every == 0 or step == 1:
                    metrics = {"loss": finite(last)} | {k: float(v) for k, v in figures.items()}
                    log.line(step, metrics | {"rate": now, "seconds": elapsed()}, progress())
                if validate is not None and (step % settings.validate_every == 0 or progress() >= 1):
                    finite(last)
                    with averager.applied(), torch.no_grad():
                        validation = validate()
                    log.line(step, validation, progress())
                if time.monotonic() - saved_at > settings.checkpoint_seconds:
                    finite(last)
                    save()
                    saved_at = time.monotonic()
        finally:
            log.close()
        if last is not None:
            finite(last)
        save()
    model.load_state_dict({name: value.clone() for name, value in averager.weights().items()})
    return TrainingResult(step, progress() >= 1, validation)
