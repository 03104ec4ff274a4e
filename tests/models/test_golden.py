"""Parity with the public LlamaGen implementation on regenerated weights."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from underpaint.models.config import build
from underpaint.models.layers import MASKED, causal_bias
from underpaint.models.transformer import Transformer, TransformerConfig
from underpaint.models.vq import VQConfig, VQModel

GOLDEN = Path(__file__).parent.parent / "golden"


def load_case(name: str) -> dict[str, Any]:
    with np.load(GOLDEN / f"{name}.npz") as data:
        case: dict[str, Any] = {key: data[key] for key in data.files}
    case["config"] = json.loads(str(case["config"]))
    case["manifest"] = json.loads(str(case["manifest"]))
    return case


def regenerate(model: nn.Module, manifest: Any, scale: float) -> None:
    """Fill the model with the case's weights; the manifest must name exactly the model's state."""
    shapes = dict(manifest.items() if isinstance(manifest, dict) else manifest)
    assert {name: list(value.shape) for name, value in model.state_dict().items()} == shapes
    for name, value in model.state_dict().items():
        noise = np.random.Generator(np.random.Philox(zlib.crc32(name.encode()))).standard_normal(value.shape)
        noise = noise.astype(np.float32)
        normal = "norm" in name and name.endswith("weight")
        value.copy_(torch.from_numpy(1 + 0.1 * noise if normal else np.float32(scale) * noise))


@torch.no_grad()
def test_vq_decodes_and_encodes_as_published() -> None:
    case = load_case("llamagen_vq_tiny")
    model = VQModel(build(VQConfig, case["config"])).eval()
    regenerate(model, case["manifest"], 0.03)
    decoded = model.decode_codes(torch.from_numpy(case["codes"]))
    np.testing.assert_allclose(decoded.numpy(), case["decoded"], atol=1e-4)
    encoded = model.encode(torch.from_numpy(case["pixels"]))
    np.testing.assert_array_equal(encoded.numpy().ravel(), case["encoded"])


def golden_transformer() -> tuple[dict[str, Any], Transformer]:
    case = load_case("llamagen_c2i_tiny")
    model = Transformer(build(TransformerConfig, case["config"])).eval()
    regenerate(model, case["manifest"], 0.08)
    return case, model


@torch.no_grad()
def test_transformer_forward_as_published() -> None:
    case, model = golden_transformer()
    tokens = torch.from_numpy(case["tokens"])
    logits, features = model(tokens[:, :-1], torch.from_numpy(case["cond"]))
    np.testing.assert_allclose(logits.numpy(), case["logits"], atol=1e-4)
    np.testing.assert_allclose(model.output(features).numpy(), case["logits"], atol=1e-4)


@torch.no_grad()
def test_transformer_one_token_at_a_time_as_published() -> None:
    case, model = golden_transformer()
    tokens = torch.from_numpy(case["tokens"])
    keys, values = model.empty_cache(2), model.empty_cache(2)
    embeddings = model.embed_condition(torch.from_numpy(case["cond"]))
    for cell in range(tokens.shape[1]):
        out = model.step(
            embeddings, torch.tensor([cell - 1]), torch.zeros(1, 1), keys, values, torch.zeros(keys[0].shape[2])
        )
        np.testing.assert_allclose(out.logits[:, 0].numpy(), case["logits"][:, cell], atol=1e-4)
        keys = [torch.cat(pair, dim=2) for pair in zip(keys, out.keys, strict=True)]
        values = [torch.cat(pair, dim=2) for pair in zip(values, out.values, strict=True)]
        embeddings = model.embed_tokens(tokens[:, cell : cell + 1])


@torch.no_grad()
def test_masked_cache_entries_change_nothing() -> None:
    """A padded cache behind `past_bias`, and many new positions at once, give the published logits too."""
    case, model = golden_transformer()
    tokens = torch.from_numpy(case["tokens"])
    embeddings = torch.cat(
        [model.embed_condition(torch.from_numpy(case["cond"])), model.embed_tokens(tokens[:, :-1])], dim=1
    )
    junk = [torch.randn(2, 4, 5, 16) for _ in model.layers]
    out = model.step(embeddings, model.cells(15), causal_bias(16), junk, junk, torch.full((5,), MASKED))
    np.testing.assert_allclose(out.logits.numpy(), case["logits"], atol=1e-4)
