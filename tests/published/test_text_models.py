"""Chameleon and Qwen2 against `transformers`' own implementations on random weights."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from tests.published.chameleon_vq import vqgan_weights
from tests.published.checkpoints import DIM, causal, eagle_weights
from tests.published.test_chameleon_vq import save_vqgan
from tests.published.text_models import (
    CODES,
    FIRST_CODE,
    IMAGE_IDS,
    LUMINA,
    OPTIONS,
    PROMPT,
    anole_draft,
    chameleon,
    image_outputs,
    save_anole_drafter,
    save_qwen,
)
from underpaint.algos.rows import SamplingParams
from underpaint.cli.app import app as underpaint
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.models.decoder import Decoder
from underpaint.models.published.files import CheckpointError
from underpaint.models.published.load import load
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.engine import manifest_config
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.pipeline import Pipeline
from underpaint.zoo.load import manifest

pytest.importorskip("transformers", reason="the extra 'chameleon' is not installed")


def step_by_step(decoder: Decoder, prompt: Tensor, codes: Tensor) -> Tensor:
    """Logits [B, 1 + codes, V]: the prompt in one pass, then codes in passes of one, two and the rest."""
    config, batch = decoder.config, prompt.shape[0]
    keys, values = decoder.empty_cache(batch), decoder.empty_cache(batch)
    length = prompt.shape[1]
    parts = [(prompt + config.vocab_size, torch.arange(-length, 0))]
    parts += [(codes[:, cut], torch.arange(codes.shape[1])[cut]) for cut in (slice(0, 1), slice(1, 3), slice(3, None))]
    logits = []
    with torch.no_grad():
        for tokens, cells in parts:
            out = decoder.step(tokens, cells, causal(len(cells), keys[0].shape[2]), keys, values)
            keys = [torch.cat(pair, dim=2) for pair in zip(keys, out.keys, strict=True)]
            values = [torch.cat(pair, dim=2) for pair in zip(values, out.values, strict=True)]
            logits.append(out.logits)
    logits[0] = logits[0][:, -1:]
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize(("swin", "kv_heads"), [(False, 4), (True, 2)])
def test_chameleon_agrees_with_transformers(tmp_path: Path, swin: bool, kv_heads: int) -> None:
    model = chameleon(swin, kv_heads)
    model.save_pretrained(tmp_path)
    decoder = load("chameleon", tmp_path, options=OPTIONS).decoder
    assert decoder is not None
    codes = torch.arange(18).reshape(2, 9) % CODES
    expected, _ = image_outputs(model, IMAGE_IDS, PROMPT, codes)
    torch.testing.assert_close(step_by_step(decoder, PROMPT, codes), expected, atol=1e-4, rtol=0)


def test_a_tree_sees_its_own_path_in_chameleon(tmp_path: Path) -> None:
    model = chameleon(False, 4)
    model.save_pretrained(tmp_path)
    decoder = load("chameleon", tmp_path, options=OPTIONS).decoder
    assert decoder is not None
    keys, values = decoder.empty_cache(2), decoder.empty_cache(2)
    length = PROMPT.shape[1]
    with torch.no_grad():
        out = decoder.step(PROMPT + CODES, torch.arange(-length, 0), causal(length), keys, values)
        seen = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]])
        bias = torch.cat([torch.zeros(4, length), (1 - seen) * -1e9], dim=1)
        nodes, cells = torch.tensor([[3, 5, 7, 9]]).repeat(2, 1), torch.tensor([0, 1, 1, 2])
        tree = decoder.step(nodes, cells, bias, out.keys, out.values).logits
    for node, path in enumerate([[0], [0, 1], [0, 2], [0, 2, 3]]):
        expected = image_outputs(model, IMAGE_IDS, PROMPT, nodes[:, path])[0][:, -1]
        torch.testing.assert_close(tree[:, node], expected, atol=1e-4, rtol=0)


def test_tars_language_model_agrees_with_transformers(tmp_path: Path) -> None:
    model = save_qwen(tmp_path)
    with pytest.raises(CheckpointError, match="give --first-code"):
        load("tar-lm", tmp_path, options=OPTIONS)
    decoder = load("tar-lm", tmp_path, options=LoadOptions(grid_side=4, prefix=8, first_code=FIRST_CODE)).decoder
    assert decoder is not None
    codes = torch.arange(18).reshape(2, 9) % CODES
    expected, _ = image_outputs(model, FIRST_CODE + torch.arange(CODES), PROMPT, codes)
    torch.testing.assert_close(step_by_step(decoder, PROMPT, codes), expected, atol=1e-4, rtol=0)


def test_tar_is_drawn_without_guidance_unless_told_how(tmp_path: Path) -> None:
    save_qwen(tmp_path / "qwen")
    options = replace(OPTIONS, first_code=FIRST_CODE)
    export_checkpoint(Request("tar-lm", tmp_path / "qwen", options=options), tmp_path / "plain")
    assert not manifest_config(manifest("target", tmp_path / "plain").settings, "target").guided
    with pytest.raises(EngineError, match="use --guidance 1"):
        EngineTarget.open("target", SamplingParams(guidance=2.0), tmp_path / "plain")
    target = EngineTarget.open("target", SamplingParams(), tmp_path / "plain")
    target.prepare(target.encoder.of_ids(PROMPT[0].numpy()))
    assert target.begin().probs.shape == (1, CODES)
    export_checkpoint(
        Request("tar-lm", tmp_path / "qwen", options=replace(options, uncond_keep=(1, 2))), tmp_path / "guided"
    )
    guided = EngineTarget.open("target", SamplingParams(guidance=2.0), tmp_path / "guided")
    guided.prepare(guided.encoder.of_ids(PROMPT[0].numpy()))
    assert guided.begin().probs.shape == (1, CODES)
    condition = guided.encoder.of_ids(PROMPT[0].numpy())
    assert (condition.tokens - CODES)[1, condition.hidden[1] :].tolist() == [1, 46, 51]


def test_tar_is_drawn_as_tokens_without_a_codebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_qwen(tmp_path / "qwen")
    export_checkpoint(
        Request("tar-lm", tmp_path / "qwen", options=replace(OPTIONS, first_code=FIRST_CODE)), Path("out")
    )
    prompt = ",".join(map(str, PROMPT[0].tolist()))
    args = ["compare", prompt, "--models", "out", "--methods", "jacobi-lookup", "--temperature", "0", "--out", "drawn"]
    result = CliRunner().invoke(underpaint, args)
    assert result.exit_code == 0, result.output
    rows = json.loads(Path("drawn/compare.json").read_text())["rows"]
    assert [row["identical_to_ar"] for row in rows] == [True, True]
    for line, expected in (
        (["generate", prompt, "--models", "out", "--out", "x.png"], "has no picture decoder; export"),
        (["compare", prompt, "--models", "out", "--methods", "gsd", "--out", "no"], "expected the model's codebook"),
    ):
        refused = CliRunner().invoke(underpaint, line)
        assert refused.exit_code == 2
        assert expected in refused.output


def test_what_is_kept_of_a_prompt_is_recorded_and_checked(tmp_path: Path) -> None:
    save_qwen(tmp_path / "qwen")
    sizes = ["--grid", "4", "--prefix", "8", "--first-code", str(FIRST_CODE)]
    export = ["export", str(tmp_path / "qwen"), "--kind", "tar-lm", "--out", str(tmp_path / "out"), *sizes]
    for counts in (["0", "0"], ["-1", "2"]):
        refused = CliRunner().invoke(underpaint, [*export, "--uncond-keep", *counts])
        assert refused.exit_code == 2
        assert "--uncond-keep: expected two counts of ids" in refused.output
    assert CliRunner().invoke(underpaint, [*export, "--uncond-keep", "1", "2"]).exit_code == 0
    assert manifest_config(manifest("target", tmp_path / "out").settings, "target").uncond_keep == (1, 2)
    checked = CliRunner().invoke(underpaint, ["check", str(tmp_path / "out"), "--no-greedy"])
    assert checked.exit_code == 0, checked.output
    assert "unseen: largest / mean error" in checked.output
    assert "greedy decoding" not in checked.output, "nothing is said of a comparison that was not made"


def test_a_model_without_guidance_is_drawn_without_by_default(tmp_path: Path) -> None:
    save_qwen(tmp_path / "qwen")
    options, out = replace(OPTIONS, first_code=FIRST_CODE), tmp_path / "out"
    target = ("tar-lm", tmp_path / "qwen")
    export_checkpoint(Request(*target, options=options), out)
    state = eagle_weights()
    del state["embed_tokens.weight"]
    save_file(state, tmp_path / "eagle.safetensors")
    export_checkpoint(
        Request("eagle-drafter", tmp_path / "eagle.safetensors", target=target, target_options=options), out
    )
    save_vqgan(tmp_path / "tokenizer" / "vqgan.ckpt", vqgan_weights(CODES))
    export_checkpoint(Request("chameleon-vq", tmp_path / "tokenizer", neighbours=5), out)
    assert Pipeline.open(out).sampling.guidance == 1.0


def test_text_models_without_their_config_are_refused(tmp_path: Path) -> None:
    chameleon(False, 4).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="'vocabulary_map'"):
        load("chameleon", tmp_path)


@pytest.mark.parametrize("kind", ["chameleon", "tar-lm"])
def test_parameters_that_nothing_reads_are_refused(tmp_path: Path, kind: str) -> None:
    """A bias on the projection is another model's, and so is a norm of heads in Qwen2."""
    if kind == "chameleon":
        chameleon(False, 4).save_pretrained(tmp_path)
    else:
        save_qwen(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["model.layers.1.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    state["model.layers.0.self_attn.o_proj.bias"] = torch.ones(DIM)
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    options = LoadOptions(grid_side=4, prefix=8, first_code=FIRST_CODE)
    with pytest.raises(CheckpointError, match=rf"a {kind} checkpoint, model.*\.0\.self_attn\.o_proj\.bias not known"):
        load(kind, tmp_path, options=options)
    del state["model.layers.0.self_attn.o_proj.bias"]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert load(kind, tmp_path, options=options).decoder is not None


def test_text_models_of_another_kind_are_told_it(tmp_path: Path) -> None:
    chameleon(False, 4).save_pretrained(tmp_path / "chameleon")
    save_qwen(tmp_path / "qwen")
    for kind, folder, likely in (("tar-lm", "chameleon", "chameleon"), ("chameleon", "qwen", "tar-lm")):
        with pytest.raises(CheckpointError, match=f"use --kind {likely}"):
            load(kind, tmp_path / folder)


@pytest.mark.parametrize("first_norm", [True, False])
def test_anoles_drafter_predicts_as_a_chameleon_layer_does(tmp_path: Path, first_norm: bool) -> None:
    model = chameleon(False, 4)
    model.save_pretrained(tmp_path / "anole")
    state = save_anole_drafter(tmp_path / "drafter", first_norm)
    drafter = load(
        "eagle-drafter", tmp_path / "drafter", target=("chameleon", tmp_path / "anole"), target_options=OPTIONS
    )
    assert drafter.decoder is not None
    assert drafter.decoder.config.qk_norm
    codes = torch.arange(18).reshape(2, 9) % CODES
    features = torch.randn(2, 9, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    empty = drafter.decoder.empty_cache(2)
    with torch.no_grad():
        out = drafter.decoder.step(codes, torch.arange(9), causal(9), empty, empty, features=features)
    logits, predicted = anole_draft(state, model, features, codes)
    torch.testing.assert_close(out.features, predicted, atol=1e-4, rtol=0)
    torch.testing.assert_close(out.logits, logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("options", [OPTIONS, LUMINA], ids=["anole", "lumina"])
def test_methods_compare_on_a_chameleon_export(tmp_path: Path, options: LoadOptions) -> None:
    """Its checkpoint holds the codes, which methods pool over, and no decoder: figures without pictures."""
    model = chameleon(False, 4)
    model.save_pretrained(tmp_path / "anole")
    save_anole_drafter(tmp_path / "drafter")
    pair = ("chameleon", tmp_path / "anole")
    export_checkpoint(Request(*pair, options=options, neighbours=5), tmp_path / "out")
    drafter = Request("eagle-drafter", tmp_path / "drafter", target=pair, target_options=options)
    export_checkpoint(drafter, tmp_path / "out")
    prompt, out = ",".join(str(int(each)) for each in PROMPT[0]), tmp_path / "drawn"
    common = ["compare", prompt, "--models", str(tmp_path / "out"), "--top-k", "0", "--temperature", "0"]
    common += ["--preset", "tuned"]
    methods = ["--methods", "ar,eagle2,lantern,zipar", "--set", "lantern.k=0", "--set", "zipar.window=2"]
    result = CliRunner().invoke(underpaint, [*common, *methods, "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = {row["method"]: row for row in json.loads((out / "compare.json").read_text())["rows"]}
    assert rows["eagle2"]["identical_share"] == 1
    # The prompt is one pass, whatever each row sees of it, and its last column gives the first of the 16 cells.
    assert rows["eagle2"]["target_nfe"] <= rows["ar"]["target_nfe"] == 16
    assert not list(out.glob("*.png"))
