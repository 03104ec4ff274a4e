"""Weights that an export wrote are read back as the decoder that they are of."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runtime.device.test_kernels import FAMILIES, model_of
from underpaint.algos.rows import SamplingParams, sampling_probs
from underpaint.artifacts.manifest import Manifest, WeightsEntry
from underpaint.export.decoders import GraphFormat, exported_config, write_graph
from underpaint.models.decoder import Decoder, causal_bias
from underpaint.runtime.device.weights import read_decoder, stored_numbers
from underpaint.runtime.engines.config_only import ConfigOnlyDecoder, load_config_only
from underpaint.runtime.engines.context import EngineContext, EngineError
from underpaint.runtime.engines.device_memory import TYPES
from underpaint.runtime.pipeline import Pipeline
from underpaint.zoo.load import Located

CPU = torch.device("cpu")


def written(model: Decoder, folder: Path, form: GraphFormat) -> ConfigOnlyDecoder:
    path = folder / "model.onnx"
    write_graph(model, form, path)
    settings = asdict(exported_config(model, form.precision))
    manifest = Manifest("model", "target", path.name, "", 0, "", "", "", settings)
    return load_config_only("model", Located(path, replace(manifest, weights=WeightsEntry("model.safetensors", 0, ""))))


def passed(model: Decoder) -> torch.Tensor:
    """Logits of a condition position and four cells."""
    config, tokens = model.config, torch.tensor([[1, 4, 2, 6, 3]])
    features = torch.linspace(-1, 1, 5 * config.dim).view(1, 5, -1).to(model.head.weight.dtype)
    past = model.empty_cache(1)
    with torch.no_grad():
        return model.step(tokens, torch.arange(-1, 4), causal_bias(5), past, past, features=features).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_reads_back_as_itself(tmp_path: Path, family: str) -> None:
    model = model_of(replace(FAMILIES[family], rope_base=500.0, norm_eps=1e-3))
    decoder = written(model, tmp_path, GraphFormat())
    loaded_model = read_decoder(decoder, CPU)
    assert torch.allclose(passed(loaded_model), passed(model), atol=2e-5)
    assert not torch.allclose(passed(loaded_model), passed(model_of(FAMILIES[family])), atol=2e-5)
    parameter_count = sum(part.numel() for part in loaded_model.state_dict().values())
    assert stored_numbers(decoder.located) >= 0.5 * parameter_count


def test_the_shipped_target_reads_back_as_its_graph() -> None:
    """After two captions that differ in a word: a condition that is turned otherwise has every cell read their mean."""
    sampler, context = SamplingParams(), EngineContext(threads=1)
    shipped = Pipeline.open(resolution=64, context=context)
    elsewhere = Pipeline.open(resolution=64, backend="device", context=context)
    assert isinstance(elsewhere.high.decoder, ConfigOnlyDecoder)
    model = read_decoder(elsewhere.high.decoder, CPU)
    for caption in ("a woolly fox left of an outlined pumpkin", "a woolly fox left of a stone pumpkin"):
        condition = shipped.condition(caption)
        shipped.high.sample_by(sampler)
        shipped.high.condition(condition)
        expected = shipped.high.begin().probs[0]
        tokens = torch.from_numpy(elsewhere.high.encoder.encode(condition).tokens[:1])
        places, past = torch.full((tokens.shape[1],), -1), model.empty_cache(1)
        with torch.no_grad():
            logits = model.step_rows(model.embed(tokens, None), places, causal_bias(len(places)), past, past).logits
        assert np.abs(sampling_probs(logits[:, -1:].numpy(), sampler)[0] - expected).max() < 1e-5


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_precision_is_the_manifest_s(tmp_path: Path, precision: str) -> None:
    model = model_of(FAMILIES["llamagen"])
    loaded_model = read_decoder(written(model, tmp_path, GraphFormat(precision)), CPU)
    assert {part.dtype for part in loaded_model.parameters()} == {TYPES[precision]}
    assert torch.allclose(passed(loaded_model.float()), passed(model), rtol=0.1, atol=0.1)


def test_eight_bits_read_back_as_what_they_stand_for(tmp_path: Path) -> None:
    model = model_of(FAMILIES["drafter"])
    decoder = written(model, tmp_path, GraphFormat(eight_bits=True))
    apart = (passed(read_decoder(decoder, CPU)) - passed(model)).abs().max()
    assert 0 < apart < 0.2


def test_weights_of_another_config_are_refused(tmp_path: Path) -> None:
    decoder = written(model_of(FAMILIES["chameleon"]), tmp_path, GraphFormat())
    other = decoder._replace(config=replace(decoder.config, dim=2 * decoder.config.dim))
    with pytest.raises(EngineError, match="its manifest and its weights differ"):
        read_decoder(other, CPU)
