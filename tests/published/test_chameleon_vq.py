"""Chameleon's released tokenizer: its pictures through ONNX Runtime, its codes a target's codes, bad files refused."""

import json
import re
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from tests.published.chameleon_vq import BLOCKS, CH, LATENT, MULTIPLIERS, STRIDE, WIDTH, decoded, encoded, vqgan_weights
from tests.published.checkpoints import noise, save_vq
from tests.published.text_models import CODES, IMAGE_IDS, MAP, OPTIONS, PROMPT, chameleon, save_anole_drafter
from underpaint.cli.app import app as underpaint
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.export.tokenizer import require_same_codes
from underpaint.models.published.files import CheckpointError
from underpaint.models.published.load import load
from underpaint.runtime.engines.context import EngineContext, open_session
from underpaint.runtime.engines.images import to_bytes
from underpaint.zoo.load import manifest

ONE_THREAD = EngineContext(threads=1)
GRID = torch.arange(40).reshape(2, 4, 5) * 7 % CODES
PIXELS = noise(2, 3, 4 * STRIDE, 5 * STRIDE, scale=0.5)


def save_vqgan(path: Path, state: dict[str, Tensor]) -> None:
    """As Lightning leaves it: what training kept beside the parameters, and parameters of its loss among them."""
    beside = {
        "loss.perceptual_loss.scaling_layer.shift": noise(1, 3, 1, 1),
        "loss.discriminator.main.0.weight": noise(3, 3),
        "loss.discriminator.main.3.num_batches_tracked": torch.tensor(5),
        "model_ema.decay": torch.tensor(0.9),
        "model_ema.num_updates": torch.tensor(5),
    }
    moments = {"step": 7, "exp_avg": noise(3), "exp_avg_sq": noise(3)}
    training = {
        "epoch": 3,
        "global_step": 7,
        "pytorch-lightning_version": "1.9.0",
        "state_dict": OrderedDict(state | beside),
        "callbacks": {"ModelCheckpoint{'monitor': 'val/rec_loss'}": {"best_model_score": torch.tensor(0.1)}},
        "optimizer_states": [{"state": {0: moments}, "param_groups": [{"lr": 1e-4, "params": [0]}]}] * 2,
        "lr_schedulers": [],
    }
    path.parent.mkdir(exist_ok=True)
    torch.save(training, path)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the released file in `tokenizer/`, and its export in float32 in `out/`."""
    work = tmp_path_factory.mktemp("chameleon")
    save_vqgan(work / "tokenizer" / "vqgan.ckpt", vqgan_weights(CODES))
    (work / "tokenizer" / "vqgan.yaml").write_text("model: {}\n")
    export_checkpoint(Request("chameleon-vq", work / "tokenizer", neighbours=5), work / "out")
    return work


def test_codes_become_the_pictures_of_the_published_decoder(release: Path) -> None:
    session = open_session(release / "out" / "vq_decoder.onnx", ONE_THREAD)
    pixels = session.run(None, {"codes": GRID.numpy()})[0]
    np.testing.assert_allclose(pixels, decoded(vqgan_weights(CODES), GRID).numpy(), atol=1e-4)
    assert manifest("vq_decoder", release / "out").settings == {
        "vocab_size": CODES,
        "stride": STRIDE,
        "code_width": WIDTH,
        "precision": "fp32",
    }


def test_pictures_become_the_codes_of_the_published_encoder(release: Path) -> None:
    session = open_session(release / "out" / "vq_encoder.onnx", ONE_THREAD)
    expected = encoded(vqgan_weights(CODES), PIXELS).numpy()
    scores = session.run(None, {"pixels": PIXELS.numpy()})[0]
    np.testing.assert_array_equal(scores.argmax(axis=-1), expected)
    assert len(np.unique(expected)) > 3
    model = load("chameleon-vq", release / "tokenizer").vq
    assert model is not None
    np.testing.assert_array_equal(model.encode(PIXELS).numpy(), expected.reshape(2, -1))


def test_the_codebook_is_stored_as_it_is(release: Path) -> None:
    with np.load(release / "out" / "codebook.npz") as stored:
        codebook = stored["codebook"]
    np.testing.assert_array_equal(codebook, vqgan_weights(CODES)["quantize.embedding.weight"].numpy())


def test_transformers_encoder_gives_the_same_codes() -> None:
    pytest.importorskip("transformers", reason="the extra 'chameleon' is not installed")
    from transformers.models.chameleon import ChameleonVQVAEConfig
    from transformers.models.chameleon.modeling_chameleon import ChameleonVQVAE

    sizes = {"embed_dim": WIDTH, "num_embeddings": CODES, "latent_channels": LATENT, "base_channels": CH}
    config = ChameleonVQVAEConfig(**sizes, channel_multiplier=list(MULTIPLIERS), num_res_blocks=BLOCKS, resolution=8)
    state, model = vqgan_weights(CODES), ChameleonVQVAE(config).eval()
    model.load_state_dict({name: value for name, value in state.items() if not name.startswith("decoder.")})
    with torch.no_grad():
        codes = model.encode(PIXELS).image_tokens
    assert torch.equal(codes.ravel(), encoded(state, PIXELS).ravel())


@pytest.mark.parametrize("inside", ["", "model.vqmodel."])
def test_attention_at_the_coarsest_level_is_read_from_the_file(tmp_path: Path, inside: str) -> None:
    """Under bare names, and within the conversions to `transformers`' layout that keep the picture decoder."""
    state = vqgan_weights(CODES, attention=True)
    save_vqgan(tmp_path / "vqgan.ckpt", {f"{inside}{name}": value for name, value in state.items()})
    model = load("chameleon-vq", tmp_path / "vqgan.ckpt").vq
    assert model is not None
    with torch.no_grad():
        pixels = model.decode_codes(GRID.reshape(2, -1)[:, :16])
    torch.testing.assert_close(pixels, decoded(state, GRID.reshape(2, -1)[:, :16].reshape(2, 4, 4)), atol=1e-4, rtol=0)
    np.testing.assert_array_equal(model.encode(PIXELS), encoded(state, PIXELS).reshape(2, -1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: {name: value for name, value in state.items() if not name.startswith("decoder.")},
            "decoder.up.0.block.0.conv1.weight missing",
        ),
        (
            lambda state: {f"model.vqmodel.{name}": state[name] for name in state if "decoder" not in name},
            "holds the codes and no picture decoder; give the release's tokenizer/vqgan.ckpt",
        ),
        (
            lambda state: {name: state[name] for name in state if name != "decoder.up.1.block.0.norm2.bias"},
            "decoder.up.1.block.0.norm2.bias missing",
        ),
        (
            lambda state: {name: state[name] for name in state if not name.startswith("decoder.up.1.")},
            "must have one length",
        ),
        (lambda state: state | {"quantize.used": torch.arange(3)}, "quantize.used not known"),
        (lambda state: state | {"decoder.up.0.attn.0.q.weight": noise(3)}, "decoder.up.0.attn.0.q.weight not known"),
        (lambda state: state | {"quantize.embedding.weight": noise(3)}, "[codes, width], got [3]"),
        (lambda state: state | {"quant_conv.weight": noise(3, 4, 1, 1)}, "quant_conv.weight (3, 4, 1, 1) for"),
        (lambda state: state | {"encoder.conv_in.weight": noise(64, 3, 3, 3)}, "at least 128 channels, got 64"),
    ],
)
def test_a_file_of_another_form_is_one_line(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str
) -> None:
    save_vqgan(tmp_path / "vqgan.ckpt", change(vqgan_weights(CODES)))
    options = ["--kind", "chameleon-vq", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(underpaint, ["export", str(tmp_path / "vqgan.ckpt"), *options])
    assert result.exit_code == 2
    assert message in result.output
    assert result.output.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_two_tokenizers_are_told_apart(tmp_path: Path, release: Path) -> None:
    save_vq(tmp_path / "vq.pt")
    with pytest.raises(CheckpointError, match=r"use --kind vq$"):
        load("chameleon-vq", tmp_path / "vq.pt")
    with pytest.raises(CheckpointError, match=r"use --kind chameleon-vq$"):
        load("vq", release / "tokenizer")


@pytest.fixture(scope="module")
def anole(tmp_path_factory: pytest.TempPathFactory, release: Path) -> Path:
    """A target with the codes of `release` in `anole/`, exported with its drafter beside that tokenizer into `out/`."""
    pytest.importorskip("transformers", reason="the extra 'chameleon' is not installed")
    work = tmp_path_factory.mktemp("anole")
    model = chameleon(False, 4)
    model.model.vqmodel.quantize.embedding.weight.data.copy_(vqgan_weights(CODES)["quantize.embedding.weight"])
    model.save_pretrained(work / "anole")
    save_anole_drafter(work / "drafter")
    pair = ("chameleon", work / "anole")
    shutil.copytree(release / "out", work / "out")
    export_checkpoint(Request(*pair, "bf16", OPTIONS, neighbours=5), work / "out")  # equal codebooks, but for rounding
    export_checkpoint(Request(*pair, options=OPTIONS, neighbours=5), work / "out")
    drafter = Request("eagle-drafter", work / "drafter", target=pair, target_options=OPTIONS)
    export_checkpoint(drafter, work / "out")
    return work


def test_a_tokenizer_of_other_codes_than_the_targets_is_refused(anole: Path, tmp_path: Path, release: Path) -> None:
    require_same_codes(load("chameleon-vq", release / "tokenizer", "fp16"), anole / "out")
    other = vqgan_weights(CODES)
    other["quantize.embedding.weight"] = other["quantize.embedding.weight"].flip(0)
    for state, message in (
        (vqgan_weights(CODES + 1), f"{CODES + 1} codes, but 'target' in .* has {CODES}; a folder holds"),
        (other, "other codes than those of 'target'"),
    ):
        save_vqgan(tmp_path / "vqgan.ckpt", state)
        options = ["--kind", "chameleon-vq", "--out", str(anole / "out")]
        result = CliRunner().invoke(underpaint, ["export", str(tmp_path / "vqgan.ckpt"), *options])
        assert result.exit_code == 2
        assert re.search(message, result.output), result.output
    assert manifest("vq_decoder", anole / "out").export == manifest("vq_decoder", release / "out").export


def test_a_target_of_other_codes_than_the_tokenizers_is_refused(anole: Path, release: Path, tmp_path: Path) -> None:
    chameleon(False, 4).save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="other codes than those of 'vq_decoder'"):
        export_checkpoint(Request("chameleon", tmp_path / "other", options=OPTIONS), release / "out")
    assert not (release / "out" / "target.onnx").exists()


def test_an_exported_chameleon_draws_pictures(anole: Path, tmp_path: Path) -> None:
    """What `compare` draws of a target's codes is the published decoder's picture of them."""
    from transformers.models.chameleon.modeling_chameleon import ChameleonImageVocabularyMapping

    runner = CliRunner()
    result = runner.invoke(underpaint, ["check", str(anole / "out")])
    assert result.exit_code == 0, result.output
    assert "vq_decoder (fp32): passed" in result.output
    prompt = ",".join(str(int(each)) for each in PROMPT[0])
    common = [
        *("compare", "--preset", "tuned"),
        prompt,
        "--models",
        str(anole / "out"),
        "--top-k",
        "0",
        "--methods",
        "ar,eagle2",
        "--save-pictures",
    ]
    result = runner.invoke(underpaint, [*common, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    drawings = [json.loads(line) for line in (tmp_path / "drawings.jsonl").read_text().splitlines()[1:]]
    assert {each["method"] for each in drawings} == {"ar", "eagle2"}
    for each in drawings:
        codes = torch.tensor(each["tokens"]).reshape(1, OPTIONS.grid_side, OPTIONS.grid_side)
        assert len(codes.unique()) > 2
        expected = to_bytes(decoded(vqgan_weights(CODES), codes)[0].numpy())
        picture = np.asarray(Image.open(tmp_path / "pictures" / each["method"] / "0000-seed0.png"))
        assert np.abs(picture.astype(int) - expected.astype(int)).max() <= 1
    # `transformers` reads the same code from each of the target's vocabulary ids.
    codes_by_id = ChameleonImageVocabularyMapping(MAP).bpe2img
    assert codes_by_id == {int(place): code for code, place in enumerate(IMAGE_IDS)}
