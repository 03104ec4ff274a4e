"""Heads that share keys and values, as wide as they like: the same function as a model that repeats them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from underpaint.algos.protocols import FusedTreeSpec
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig, Precision
from underpaint.export.decoders import GraphFormat, export_decoder
from underpaint.export.store import Origin, staged
from underpaint.models.decoder import Decoder, causal_bias
from underpaint.models.layers import Layer
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.engines.onnx_engine import OnnxEngine, load_onnx
from underpaint.runtime.engines.pass_inputs import causal

TARGET = DecoderConfig(
    dim=24,
    layers=2,
    heads=6,
    kv_heads=2,
    head_dim=8,
    hidden=16,
    vocab_size=17,
    grid_side=4,
    prefix=2,
    cond_ids=5,
    qkv_bias=True,
    qk_norm=True,
)
DRAFTER = replace(TARGET, condition="none", cond_ids=0, drafter=True, fc_bias=False)
LEARNT = replace(TARGET, rope="none", qk_norm=False)
ORIGIN = Origin("a test", "none")


def model_of(config: DecoderConfig) -> Decoder:
    torch.manual_seed(3)
    model = Decoder(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(0.3 * torch.randn(weights.shape) + (weights.dim() == 1))
    return model.eval()


def repeated(model: Decoder) -> Decoder:
    """The same function with a head of keys and values to each query head."""
    config = model.config
    groups, wide, state = config.heads // config.kv_heads, config.head_dim, model.state_dict()
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        for name in ("qkv.weight", "qkv.bias"):
            rows = state[f"layers.{index}.{name}"].unflatten(0, (-1, wide))
            query, shared = rows[: config.heads], rows[config.heads :].unflatten(0, (2, -1))
            state[f"layers.{index}.{name}"] = torch.cat(
                [query, shared.repeat_interleave(groups, dim=1).flatten(0, 1)]
            ).flatten(0, 1)
        for name in ("k_scale", "k_shift") if config.qk_norm else ():
            state[f"layers.{index}.{name}"] = state[f"layers.{index}.{name}"].repeat_interleave(groups, dim=0)
    decoder = Decoder(replace(config, kv_heads=0))
    decoder.load_state_dict(state)
    return decoder.eval()


@pytest.mark.parametrize("config", [TARGET, LEARNT, replace(TARGET, rope="line", post_norm=True)])
@torch.no_grad()
def test_a_model_that_repeats_keys_computes_the_same(config: DecoderConfig) -> None:
    grouped = model_of(config)
    tokens, cells = torch.randint(0, 17, (2, 7)), torch.arange(7)
    features = []
    for model in (grouped, repeated(grouped)):
        empty = model.empty_cache(2)
        first = model.step(tokens[:, :4], cells[:4], causal_bias(4), empty, empty)
        bias = torch.cat([torch.zeros(3, 4), causal_bias(3)], dim=1)
        features.append(model.step(tokens[:, 4:], cells[4:], bias, first.keys, first.values).features)
        assert first.keys[0].shape == (2, model.config.kv_heads, 4, 8)
    torch.testing.assert_close(features[0], features[1], atol=1e-5, rtol=1e-5)


def engine_of(config: DecoderConfig, folder: Path, kind: str, precision: Precision = "fp32") -> OnnxEngine:
    """Exported, which holds the graph against the module, and opened."""
    with staged(folder) as aside:
        export_decoder(kind, model_of(config), None, GraphFormat(precision), aside, ORIGIN)
    return load_onnx(kind, kind, folder, EngineContext(threads=1)).open(1)


@pytest.mark.parametrize("config", [TARGET, LEARNT])
def test_its_graphs_keep_shared_keys_alone(tmp_path: Path, config: DecoderConfig) -> None:
    engine = engine_of(config, tmp_path, "target")
    out = engine.run(np.array([[18, 19]]), engine.config.first_cells(2), causal(2))
    engine.cache.commit(slice(None))
    assert engine.memory.keys.shape[2:4] == (2, 8)
    model = repeated(model_of(config))
    empty = model.empty_cache(1)
    with torch.no_grad():
        cells = torch.from_numpy(engine.config.first_cells(2))
        expected = model.step(torch.tensor([[18, 19]]), cells, causal_bias(2), empty, empty)
    np.testing.assert_allclose(out.logits, expected.logits.numpy(), atol=1e-4)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_passes_its_parity_check(tmp_path: Path, precision: Precision) -> None:
    with staged(tmp_path) as aside:
        export_decoder("target", model_of(TARGET), None, GraphFormat(precision), aside, ORIGIN)


@pytest.mark.parametrize("drawn", [False, True])
def test_a_drafter_grows_the_tree_that_single_levels_grow(tmp_path: Path, drawn: bool) -> None:
    """Chains and trees in one call are loops of their own in the graph."""
    engine = engine_of(DRAFTER, tmp_path, "drafter")
    engine.sample_by(SamplingParams())
    rng = np.random.default_rng(0)
    features = rng.standard_normal((1, 2, 24)).astype(np.float32)
    tree = FusedTreeSpec(np.array([[0, 2], [0, 0]]), rng.random((2, 2, 3)), False, drawn)
    inputs = (np.array([[3, 5]]), np.arange(2), causal(2), None, features)
    chain = engine.run(*inputs, chain_levels=3).chain
    assert chain is not None
    chain = chain.copy()
    out = engine.run(*inputs, tree=tree)
    assert out.tree is not None
    root_tokens, probs = out.tree.root_tokens[0].copy(), out.tree.probs[0].copy()
    model = repeated(model_of(DRAFTER))
    empty, read = model.empty_cache(1), torch.from_numpy(features)
    with torch.no_grad():
        first = model.step(torch.tensor([[3, 5]]), torch.arange(2), causal_bias(2), empty, empty, None, read)
        for row, token in enumerate(root_tokens[[0, 2]]):
            behind = model.step(
                torch.tensor([[token]]), torch.tensor([2]), torch.zeros(1, 3), first.keys, first.values, None,
                first.features[:, -1:],
            )  # fmt: skip
            np.testing.assert_allclose(probs[row], behind.logits[0, 0].softmax(dim=-1).numpy(), atol=1e-5)
        following = model.step(
            torch.tensor([[chain[0]]]), torch.tensor([2]), torch.zeros(1, 3), first.keys, first.values, None,
            first.features[:, -1:],
        )  # fmt: skip
    assert chain[:2].tolist() == [int(first.logits[0, -1].argmax()), int(following.logits[0, 0].argmax())]
