"""The models that `benchmarks.device` runs: the shipped weights, and random ones in a published model's sizes."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.model_index import read_index
from underpaint.models.decoder import Decoder
from underpaint.runtime.conditions import Condition, ConditionEncoder, of_words
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.folder import DeviceModels
from underpaint.runtime.device.forms import DeviceForm, form_of
from underpaint.runtime.device.weights import read_decoder
from underpaint.runtime.engines.config_only import load_config_only
from underpaint.runtime.methods.method import ModelTables
from underpaint.runtime.methods.registry import resolve
from underpaint.zoo.load import FOLDER, locate, read_codebook, takes_grammar
from underpaint.zoo.textured_prompts import sample_textured

TINY = DecoderConfig(dim=32, layers=1, heads=2, hidden=16, vocab_size=128, grid_side=8, prefix=1, cond_ids=9)
"""A tiny target for Triton's interpreter."""


def shipped_method(name: str, temperature: float, sampler: SamplingParams, tables: ModelTables) -> DeviceForm | None:
    """Return a registered method's tuned device form; None unless it drafts trees or windows that the device runs."""
    method, sampling = resolve(name, temperature).build(name, tables), replace(sampler, temperature=temperature)
    if method.config.family not in ("tree", "jacobi") or not method.config.runs_on_device:
        return None
    form = form_of(method, sampling, Grid(1, 1))
    return form if form.counts_drafts and form.engine_gap is None else None


def random_model(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> tuple[Decoder, Decoder]:
    """Return a target and a one-layer drafter with random weights, the same at every call on one kind of device."""
    drafts = replace(config, layers=1, drafter=True, fc_bias=False, condition="none", cond_ids=0, prefix=1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    torch.manual_seed(0)
    try:
        with torch.device(device), torch.no_grad():
            decoders = Decoder(config), Decoder(drafts)
            for one in decoders:
                for weights in one.parameters():
                    weights.normal_(std=0.02) if weights.dim() > 1 else weights.fill_(1.0)
    finally:
        torch.set_default_dtype(before)
    return decoders[0].eval(), decoders[1].eval()


class Shipped(NamedTuple):
    """The shipped models on a device, the grid to decode, and the models' own sampling settings."""

    models: DeviceModels
    grid: Grid
    sampler: SamplingParams


def shipped_models(device: torch.device, dtype: torch.dtype, tiny: bool) -> Shipped:
    """Load the largest shipped target and its drafter. tiny: for the interpreter, which is slow, four cells and a small
    model with random weights that takes the same prompts."""
    shipped = [load_config_only(f"{kind}128", locate(f"{kind}128", kind)) for kind in ("target", "drafter")]
    decoders = [read_decoder(one, device, narrow=not tiny).to(dtype) for one in shipped]
    grid = shipped[0].config.grid
    if tiny:
        grid = Grid(1, 4)
        small = replace(decoders[0].config, dim=32, layers=1, heads=2, hidden=16, kv_heads=0, head_dim=0)
        decoders = list(random_model(small, dtype, device))
    encoder, forwards = ConditionEncoder(shipped[0].config), [DecoderForward(one, 1) for one in decoders]
    models = DeviceModels(*forwards, encoder, device, lambda: read_decoder(shipped[0], device).to(dtype))
    return Shipped(models, grid, read_index(FOLDER).sampling())


def shipped_prompts(count: int) -> list[Condition]:
    """Return `count` prompts of the grammar, the same at every call."""
    if not takes_grammar(read_index(FOLDER)):
        raise ValueError(f"{FOLDER}: expected models that are asked in the words of a prompt grammar")
    rng = np.random.default_rng(0)
    return [of_words(sample_textured(rng)) for _ in range(count)]


def shipped_tables() -> ModelTables:
    """Return the shipped codebook and its nearest codes, for rules that pool over them."""
    codebook = read_codebook()
    return ModelTables.of(codebook, len(codebook))


def weight_bytes(module: Any) -> int:
    """Return the bytes of a target's weights that a pass over one position reads: all but the embeddings."""
    embeddings = ("codes.", "conditions.", "positions.")
    read = [weights for name, weights in module.named_parameters() if not name.startswith(embeddings)]
    return sum(weights.numel() * weights.element_size() for weights in read)
