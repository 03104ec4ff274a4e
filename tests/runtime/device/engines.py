"""Tiny decoders, by torch and by engines, and passes and whole decodes by either."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from tests.runtime.device.test_kernels import model_of
from underpaint.algos.accept import RULES
from underpaint.algos.draft import POLICIES
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.manifest import Manifest, WeightsEntry
from underpaint.export.decoders import GraphFormat, exported_config, write_graph
from underpaint.export.device_engines import write_device_graphs
from underpaint.models.decoder import Decoder
from underpaint.runtime.device.cycle import DeviceCycle
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.engine_forward import EngineForward, EngineGraphs, onnx_graphs
from underpaint.runtime.device.forwards import Cache, DeviceDecoder
from underpaint.runtime.device.weights import stored_weights
from underpaint.runtime.engines.config_only import ConfigOnlyDecoder
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.methods.trees.device import TreeForm
from underpaint.zoo.load import Located

CPU = torch.device("cpu")
GRID = Grid(2, 3)
IMAGES = (0, 1, 2)
SEED = 5
SMALL = DecoderConfig(dim=16, layers=2, heads=2, hidden=16, vocab_size=11, grid_side=3, prefix=2, cond_ids=3)
DRAFTER = replace(SMALL, layers=1, drafter=True, condition="none", cond_ids=0)
ONE_THREAD = EngineContext(threads=1)


def exported(model: Decoder, folder: Path, form: GraphFormat | None = None, name: str = "target") -> ConfigOnlyDecoder:
    """A decoder in a folder, with its graphs for the device runtime beside it."""
    form = form or GraphFormat()
    path = folder / f"{name}.onnx"
    write_graph(model, form, path)
    config = exported_config(model, form.precision)
    manifest = Manifest(
        name, "drafter" if model.config.drafter else "target", path.name, "", 0, "", "", "", asdict(config)
    )
    located = Located(path, replace(manifest, weights=WeightsEntry(f"{name}.safetensors", 0, "of a test")))
    decoder = ConfigOnlyDecoder(name, config, located)
    write_device_graphs(decoder)
    return decoder


def on_onnx(model: Decoder, folder: Path, rows: int, name: str = "target") -> EngineForward:
    return over(exported(model, folder, name=name), rows)


def over(decoder: ConfigOnlyDecoder, rows: int, engine: EngineGraphs | None = None) -> EngineForward:
    """A forward by an engine, ONNX Runtime where none is given."""
    embeddings = stored_weights(decoder.located).embeddings(decoder.config, CPU)
    return EngineForward(decoder.config, embeddings, rows, engine or onnx_graphs(decoder, ONE_THREAD))


class Passed(NamedTuple):
    """A pass over three positions of two images: features, logits, and what lies in the slots after it."""

    features: torch.Tensor
    logits: torch.Tensor
    slots: torch.Tensor


@torch.no_grad()
def passed(forward: DeviceDecoder, drafts: bool, times: int = 1, seed: int = 4) -> Passed:
    """Unequal lengths and masks, guidance pairs, hidden positions, and stale numbers all around."""
    generator = torch.Generator().manual_seed(seed)
    kv_cache = Cache(forward.config, 2 * forward.rows, 11, 9, forward.dtype, CPU, forward.places)
    for part in (kv_cache.committed, kv_cache.slots):
        sizes = (*part.shape[:4], 11 if part is kv_cache.committed else 9, forward.config.head_dim)
        part[:, :, :, :, : sizes[4], : sizes[5]] = torch.randn(sizes, generator=generator) * 3.0
    kv_cache.unseen.copy_(torch.tensor([0, 2, 1, 3]))
    before = kv_cache.committed.clone()
    lengths, first = torch.tensor([4, 9]), 2 if drafts else 0
    masks = torch.tensor([[[0b00111], [0b01010], [0b10001]], [[0b00100], [0b01001], [0b11101]]])
    if not drafts:
        masks = masks & 0b111 | torch.tensor([1, 2, 4])[:, None]
    tokens, positions = torch.tensor([[1, 4, 2], [5, 0, 7]]), torch.tensor([[3, 4, 4], [8, 7, 7]])
    features = torch.randn(4, 3, forward.config.dim, generator=generator) if drafts else None
    for _ in range(times):
        attend = kv_cache.attend(first, lengths, masks, 4)
        if features is None:
            hidden_states = forward.hidden(forward.embed(tokens), positions, attend).clone()
        else:
            hidden_states = forward.draft_hidden(tokens, features, None, positions, attend).clone()
    assert torch.equal(kv_cache.committed, before), "a pass commits nothing"
    return Passed(hidden_states, forward.logits(hidden_states).clone(), kv_cache.slots.clone())


class Pair(NamedTuple):
    target: DeviceDecoder
    drafter: DeviceDecoder


@cache
def models() -> tuple[Decoder, Decoder]:
    """A target, and a drafter that shares its embeddings and its head, so that drafts are sometimes right."""
    target, drafter = model_of(SMALL), model_of(DRAFTER)
    with torch.no_grad():
        drafter.codes.weight.copy_(target.codes.weight)
        drafter.head.weight.copy_(target.head.weight)
    return target, drafter


def in_torch(rows: int = 2) -> Pair:
    return Pair(*(DecoderForward(model, rows) for model in models()))


METHODS = {
    "ar": (None, "point", {}),
    "eagle2": ("eagle2", "point", {"depth": 2, "top_k": 3, "total_tokens": 5}),
}


def method(name: str, temperature: float) -> TreeForm:
    policy, rule, settings = METHODS[name]
    accept_rule = RULES["greedy" if temperature == 0 else rule].make()
    grown = None if policy is None else POLICIES[policy].make(**settings)
    return TreeForm(accept_rule, SamplingParams(guidance=2), policy=grown)


def cycle_of(pair: Pair, how: TreeForm, batch: int) -> DeviceCycle:
    return DeviceCycle(pair.target, pair.drafter, how, GRID, 2, batch, CPU)


def condition_of(image: int) -> torch.Tensor:
    """[2, 2, 16]: an image's own, of a guidance pair."""
    return torch.randn(2, 2, 16, generator=torch.Generator().manual_seed(image))


@torch.no_grad()
def begin(cycle: DeviceCycle, images: Sequence[int]) -> None:
    """Start images, each under a condition of its own."""
    conditions = torch.stack([condition_of(image) for image in images], dim=1)
    cycle.begin(conditions.flatten(0, 1), torch.full((len(images),), SEED), torch.tensor(images))


@torch.no_grad()
def decoded(cycle: DeviceCycle, images: Sequence[int]) -> list[list[int]]:
    """Tokens of each image."""
    begin(cycle, images)
    while not bool((cycle.state.verdicts.status > 0).all()):
        cycle.run()
    assert cycle.state.verdicts.status.tolist() == [1] * len(images)
    return cycle.state.progress.decided.tolist()


@cache
def by_torch(name: str, temperature: float) -> tuple[list[list[int]], list[int]]:
    """Tokens and cycles of `IMAGES` in one batch by the torch forward."""
    cycle = cycle_of(in_torch(), method(name, temperature), len(IMAGES))
    return decoded(cycle, IMAGES), cycle.state.progress.cycles.tolist()
