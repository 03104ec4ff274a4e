"""Parity with the public LlamaGen implementation on regenerated weights."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.llamagen_checkpoint import llamagen_state
from tests.published.llamagen_reference import Transformer, TransformerConfig
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.models.config import build
from underpaint.models.decoder import Decoder, causal_bias
from underpaint.models.published.load import load
from underpaint.models.published.options import LoadOptions
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
    """The case, and the reference with its weights."""
    case = load_case("llamagen_c2i_tiny")
    model = Transformer(build(TransformerConfig, case["config"])).eval()
    with torch.no_grad():
        regenerate(model, case["manifest"], 0.08)
    return case, model


def golden_decoder(folder: Path) -> tuple[dict[str, Any], Decoder]:
    """The case, and the decoder that its weights are read as, from a file of LlamaGen's names."""
    case, model = golden_transformer()
    torch.save({"model": model.state_dict()}, folder / "model.pt")
    own = LoadOptions(heads=case["config"]["n_head"], grid_side=round(case["config"]["block_size"] ** 0.5))
    decoder = load("llamagen-c2i", folder / "model.pt", options=own).decoder
    assert decoder is not None
    for name, value in llamagen_state(decoder).items():
        assert torch.equal(value, model.state_dict()[name]), name
    return case, decoder


def prefix_of(case: dict[str, Any], decoder: Decoder) -> torch.Tensor:
    """The ids of the case's classes [2, 1]."""
    return torch.from_numpy(case["cond"])[:, None] + decoder.config.vocab_size


@torch.no_grad()
def test_decoder_forward_as_published(tmp_path: Path) -> None:
    case, model = golden_decoder(tmp_path)
    tokens = torch.from_numpy(case["tokens"])
    logits, features = model(tokens[:, :-1], model.embed(prefix_of(case, model), None))
    np.testing.assert_allclose(logits.numpy(), case["logits"], atol=1e-4)
    np.testing.assert_allclose(model.head(features).numpy(), case["logits"], atol=1e-4)


@torch.no_grad()
def test_decoder_one_token_at_a_time_as_published(tmp_path: Path) -> None:
    case, model = golden_decoder(tmp_path)
    tokens = torch.from_numpy(case["tokens"])
    keys, values = model.empty_cache(2), model.empty_cache(2)
    fed = prefix_of(case, model)
    for cell in range(tokens.shape[1]):
        out = model.step(fed, torch.tensor([cell - 1]), torch.zeros(1, cell + 1), keys, values)
        np.testing.assert_allclose(out.logits[:, 0].numpy(), case["logits"][:, cell], atol=1e-4)
        keys = [torch.cat(pair, dim=2) for pair in zip(keys, out.keys, strict=True)]
        values = [torch.cat(pair, dim=2) for pair in zip(values, out.values, strict=True)]
        fed = tokens[:, cell : cell + 1]


@torch.no_grad()
def test_masked_cache_entries_change_nothing(tmp_path: Path) -> None:
    """A padded cache behind a bias, and many new positions at once, give the published logits too."""
    case, model = golden_decoder(tmp_path)
    tokens = torch.cat([prefix_of(case, model), torch.from_numpy(case["tokens"])[:, :-1]], dim=1)
    junk = [torch.randn(2, 4, 5, 16) for _ in model.layers]
    bias = torch.cat([torch.full((16, 5), float(MASKED_SCORE)), causal_bias(16)], dim=1)
    out = model.step(tokens, torch.arange(-1, 15), bias, junk, junk)
    np.testing.assert_allclose(out.logits.numpy(), case["logits"], atol=1e-4)
