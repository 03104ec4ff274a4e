"""EAGLE drafters of live models: one decoder layer that reads the target's features, run in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Scored
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.checkpoints import load_whole, take_weights
from underpaint.models.config import build
from underpaint.models.decoder import Decoder, initialise
from underpaint.models.eagle3 import Eagle3Config, Eagle3Decoder
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.pass_inputs import causal
from underpaint.runtime.engines.target import EngineTarget, hiding
from underpaint.runtime.live.engine import TorchEngine, TorchPasses
from underpaint.runtime.live.model import LiveModel, LiveModelError, is_target, target_fingerprint

KIND: Final = "live_drafter"
"""The `kind` in the config of a checkpoint of a live model's drafter."""
CHECKPOINT: Final = "checkpoint.pt"
"""Name of the checkpoint file in a training run's folder."""
_SCRATCH: Final = 640
"""Cache slots for draft nodes, as in exported drafters: ten levels of the widest tree."""


def drafter_config(live: LiveModel) -> DecoderConfig:
    """Sizes of a drafter for a live target: one of the target's layers, with as many key heads as query heads.

    It reads the prompt like its target but skips line ends: codes keep the rotary positions that they have in the
    target's sequence.
    """
    target = live.decoder
    return DecoderConfig(
        dim=target.dim,
        layers=1,
        heads=target.heads,
        hidden=target.hidden,
        vocab_size=target.vocab_size,
        grid_side=target.grid_side,
        grid_width=target.grid_width,
        prefix=live.longest_prompt,
        norm_eps=target.norm_eps,
        rope="line",
        rope_base=target.rope_base,
        condition="none",
        drafter=True,
        fc_bias=False,
        eol_token=target.eol_token,
        head_dim=target.head_dim,
        capacity=live.longest_prompt + target.cells + _SCRATCH,
    )


def new_drafter(live: LiveModel) -> Decoder:
    """Create an EAGLE drafter with random weights: one layer (arXiv 2401.15077) on the target's last features.

    It shares the target's embeddings and head, which are not trained.
    """
    drafter = Decoder(drafter_config(live))
    initialise(drafter)
    return with_ends(drafter, live)


def new_eagle3(live: LiveModel, drafted: IntArray | None = None) -> Eagle3Decoder:
    """Create an EAGLE-3 drafter with random weights; its head starts from the target's if the codes are vocabulary ids.

    Args:
        live: The target; the drafter reads the features after a low, a middle and a high layer.
        drafted: [K], ascending, the codes that it can draft; None for all codes.

    Raises:
        LiveModelError: The target's layers do not return hidden states.
    """
    check_eagle3(live)
    config, layers = drafter_config(live), live.decoder.layers
    read = sorted(min(max(layer, 1), max(1, layers - 1)) for layer in (2, layers // 2, layers - 3))
    drafted = np.arange(live.codes) if drafted is None else np.asarray(drafted, dtype=np.int64)
    drafter = Eagle3Decoder(Eagle3Config(config, tuple(read), len(drafted)))
    initialise(drafter)
    drafter.drafted.copy_(torch.from_numpy(drafted))
    if live.code_ids is not None:
        with torch.no_grad():
            weight = next(live.body.parameters())
            rows = live.head(torch.eye(config.dim, dtype=weight.dtype, device=weight.device)).T
            drafter.head.weight.copy_(rows[drafter.drafted.to(rows.device)])
    return cast(Eagle3Decoder, with_ends(drafter, live))


def check_eagle3(live: LiveModel) -> None:
    """Raise LiveModelError if the target's layers do not return hidden states."""
    if isinstance(live.config, DecoderConfig):
        raise LiveModelError(
            f"eagle3: expected a model of transformers, whose layers return their features, got {live.family}; train "
            "it a drafter with --eagle 1"
        )


def with_ends(drafter: Decoder, live: LiveModel, embed: Callable[[Tensor], Tensor] | None = None) -> Decoder:
    """Attach the target's embeddings (or `embed`) and head to a drafter; they are not saved as its own weights."""
    assert drafter.fc is not None
    weight = next(live.body.parameters())
    drafter.codes = _Borrowed(embed or live.embed, drafter.fc, weight.dtype)  # type: ignore[assignment]
    if not isinstance(drafter, Eagle3Decoder):
        drafter.head = _Borrowed(live.head, drafter.fc, weight.dtype)  # type: ignore[assignment]
    return drafter.to(weight.device)


class _Borrowed(nn.Module):
    """A part of the target that a drafter calls; computed in the target's dtype, returned in the drafter's."""

    def __init__(self, function: Any, like: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self._function, self._like = [function], [like]  # lists hide them from nn.Module, so they are not its parts
        self._dtype = dtype

    @property
    def weight(self) -> Tensor:
        """A weight with the dtype and device of the drafter's caches."""
        return self._like[0].weight

    def forward(self, inputs: Tensor) -> Tensor:
        """Call the target's part on ids, or on features of any dtype."""
        if inputs.is_floating_point():
            result: Tensor = self._function[0](inputs.to(self._dtype))
        else:
            with torch.no_grad():  # the target's embeddings are not trained
                result = self._function[0](inputs)
        return result.to(self.weight.dtype)


def target_layers(drafter: Decoder) -> tuple[int, ...]:
    """Return the target's hidden states that a drafter reads; () for its last features."""
    return drafter.eagle3.target_layers if isinstance(drafter, Eagle3Decoder) else ()


def described(drafter: Decoder, live: LiveModel) -> dict[str, Any]:
    """Return the config of a drafter's checkpoint, from which `open_drafter` rebuilds it."""
    about: dict[str, Any] = {"kind": KIND, "decoder": asdict(drafter.config), "target": target_fingerprint(live)}
    if isinstance(drafter, Eagle3Decoder):
        about["eagle3"] = {**asdict(drafter.eagle3), "decoder": asdict(drafter.config)}
    return about


def read_drafter(live: LiveModel, path: Path) -> Decoder:
    """Load a drafter from a training run's folder or checkpoint, with its target's embeddings and head.

    Raises:
        LiveModelError: It was trained for another target, or is not a drafter of a live target.
        ValueError: A damaged checkpoint.
    """
    path = _checkpoint(path)
    if not path.is_file():
        raise LiveModelError(
            f"--drafter {path}: expected {CHECKPOINT} of `underpaint train drafter`, or config.json and weights of "
            "SpecForge or speculators, got neither; train a drafter first"
        )
    saved = _saved(path)
    config: Mapping[str, Any] = saved["config"]
    if not is_target(live, str(config["target"])):
        raise LiveModelError(
            f"{path}: expected a drafter that was trained for this {live.family} model, got one of another target, or "
            "one that an earlier version saved; train one for it"
        )
    if "eagle3" in config:
        drafter: Decoder = Eagle3Decoder(build(Eagle3Config, config["eagle3"]))
    else:
        drafter = Decoder(build(DecoderConfig, config["decoder"]))
    if drafter.config.grid != live.grid:
        raise LiveModelError(
            f"{path}: expected a drafter of {live.grid.height} x {live.grid.width} cells, got one of "
            f"{drafter.config.height} x {drafter.config.width}; name its grid, or train one for this grid"
        )
    drafter = with_ends(drafter, live)
    take_weights(drafter, saved["model"], path)
    return drafter


def drafter_grid(path: Path) -> Grid | None:
    """Return the grid of a drafter from `underpaint train drafter`; None for one of another library, or for no file.

    Raises:
        LiveModelError: It is not a drafter of a live target.
        ValueError: A damaged checkpoint.
    """
    path = _checkpoint(path)
    return build(DecoderConfig, _saved(path)["config"]["decoder"]).grid if path.is_file() else None


def _checkpoint(path: Path) -> Path:
    """Return the checkpoint in a training run's folder, or the path itself if it is no folder."""
    return path / CHECKPOINT if path.is_dir() else path


def _saved(path: Path) -> dict[str, Any]:
    """Read a drafter's checkpoint; raises LiveModelError unless it is of a live target."""
    saved = load_whole(path)
    kind = saved["config"].get("kind")
    if kind != KIND:
        raise LiveModelError(
            f"{path}: expected a drafter of a live target (kind {KIND}), got {kind!r}; train one for it with "
            "`underpaint train drafter --live`"
        )
    return saved


class LiveDrafter(EngineDrafter):
    """Drafts for a live model: it first reads the prompt like its target, then the committed tokens."""

    def __init__(self, drafter: Decoder, sampling: SamplingParams) -> None:
        """See `read_drafter`."""
        self.module = drafter
        self._target: EngineTarget | None = None
        super().__init__(LiveDrafterDecoder(drafter), sampling)

    def fork(self) -> LiveDrafter:
        """See `EngineDrafter.fork`; the new drafter has no target yet."""
        return LiveDrafter(self.module, self.params)

    def follow(self, target: EngineTarget) -> None:
        """Draft for this target; every `begin` reads the target's prompt."""
        self._target = target

    @property
    def feature_width(self) -> int:
        return self.decoder.config.dim * max(1, len(target_layers(self.module)))

    def begin(self, scored: Scored) -> None:
        super().begin(scored)
        prompt = None if self._target is None else cast(TorchEngine, self._target.engine).prompt
        if prompt is None or prompt.tokens.shape[1] < 2:
            return
        count = prompt.tokens.shape[1] - 1
        self.engine.begin(prompt.padding)
        bias = np.stack([hiding(causal(count), hidden) for hidden in prompt.padding])
        self.engine.run(prompt.tokens[:, 1:], np.arange(-count, 0), bias, features=prompt.features[:, :-1])
        self.engine.cache.commit(slice(None))
        self.prompt_positions = count


class LiveDrafterDecoder:
    """Implements `engines.engine.LoadedDecoder`."""

    row_counts: tuple[int, ...] | None = None
    name = "drafter"

    def __init__(self, drafter: Decoder) -> None:
        """See `new_drafter`."""
        self.module = drafter.eval()

    @property
    def config(self) -> DecoderConfig:
        return self.module.config

    def max_positions(self, rows: int) -> int | None:
        return None

    def open(self, rows: int) -> DrafterEngine:
        return DrafterEngine(self.module, rows)


class DrafterEngine(TorchPasses):
    """Implements `engines.engine.Engine` for a drafter of a live model."""

    def __init__(self, drafter: Decoder, rows: int) -> None:
        super().__init__(drafter.config, rows, drafter.head.weight)
        self._drafter = drafter

    def _check(self, cells: IntArray) -> None:
        if cells.max() >= self.config.cells:
            raise EngineError(
                f"drafter: expected cells up to {self.config.cells - 1}, got {cells.max()}; draft a shallower tree"
            )

    def _forward(
        self, ids: Tensor, cells: IntArray, bias: Tensor, features: FloatArray | None
    ) -> tuple[Tensor, NDArray[np.float32]]:
        device = self._like.device
        read = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32)).to(device)
        at = torch.as_tensor(cells, device=device)
        out = self._drafter.step(ids, at, bias, *self.memory.read(), features=read)
        for layer, pair in enumerate(zip(out.keys, out.values, strict=True)):
            self.memory.update(*pair, layer)
        return out.logits, out.features.cpu().numpy()
