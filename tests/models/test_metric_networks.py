"""Metrics' networks in the formats that they are published in, tiny and with random weights."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.models.clip_folder import write_clip
from underpaint.models.metrics.aesthetic import AestheticPredictor
from underpaint.models.metrics.clip import Clip, renamed
from underpaint.models.metrics.inception import FidInception, Inception, enlarged
from underpaint.models.metrics.weights import PUBLISHED, check_weights, load_weights

SHARE = 16
PICTURES = np.random.default_rng(0).integers(0, 256, (3, 40, 40, 3), dtype=np.uint8)


def published_names(network):
    """Its weights under the names of torch-fidelity's file."""
    inside = ("_stem.", "_blocks.")
    return {
        next((name.removeprefix(one) for one in inside if name.startswith(one)), name): value
        for name, value in network.state_dict().items()
    }


@pytest.fixture(scope="module")
def inception_file(tmp_path_factory):
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("inception") / "weights.pth"
    torch.save(published_names(FidInception(SHARE)), path)
    return path


def test_inceptions_weights_are_read_by_their_published_names(inception_file):
    held = load_weights(inception_file, "inception")
    for name in ("Conv2d_1a_3x3.conv.weight", "Mixed_7c.branch3x3dbl_3b.bn.running_var", "fc.bias"):
        assert name in held
    found = Inception(inception_file, SHARE)(PICTURES)
    assert found.features.shape == (3, 2048 // SHARE)
    assert found.probabilities.shape == (3, 1008)
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1.0, atol=1e-9)
    again = Inception(inception_file, SHARE)(PICTURES[1:2])
    np.testing.assert_allclose(again.features, found.features[1:2], atol=1e-5)


def test_inception_has_the_published_sizes():
    with torch.device("meta"):
        network = FidInception()
    shapes = {name: tuple(value.shape) for name, value in published_names(network).items()}
    assert len(shapes) == 2 + 94 * 6  # the last layer, and 94 convolutions with their norms
    assert sum(one.numel() for one in network.parameters()) == 23_850_960
    assert shapes["fc.weight"] == (1008, 2048)
    assert shapes["Mixed_6b.branch7x7dbl_4.conv.weight"] == (128, 128, 7, 1)
    assert shapes["Mixed_7b.branch_pool.conv.weight"] == (192, 1280, 1, 1)
    assert shapes["Mixed_7c.branch3x3_2a.conv.weight"] == (384, 384, 1, 3)


def test_other_inceptions_are_refused(inception_file, tmp_path):
    with pytest.raises(ValueError, match="expected torch-fidelity's Inception weights"):
        Inception(inception_file, SHARE // 2)
    torch.save({"weight": 3}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match="names with tensors"):
        Inception(tmp_path / "other.pth")
    (tmp_path / "text.pth").write_text("none")
    with pytest.raises(ValueError, match="expected a state dict of PyTorch"):
        Inception(tmp_path / "text.pth")


def test_pictures_are_enlarged_from_their_upper_left_corner():
    line = torch.arange(4.0).reshape(1, 1, 1, 4).expand(1, 1, 4, 4)
    found = enlarged(line, 8)
    assert found[0, 0, 0].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.0]
    assert torch.equal(found[0, 0, 0], found[0, 0, 7])
    assert torch.equal(enlarged(line, 4), line)


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("clip"))


def test_clip_sees_pictures_and_reads_texts(clip_folder):
    clip = Clip(clip_folder)
    seen, read = clip.of_pictures(list(PICTURES)), clip.of_texts(["a fox", "a very long text about nothing at all"])
    assert (seen.shape, read.shape) == ((3, 8), (2, 8))
    for features in (seen, read):
        np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0, atol=1e-9)
    assert np.abs(read[0] - read[1]).max() > 1e-3
    np.testing.assert_allclose(clip.of_pictures([PICTURES[1]]), seen[1:2], atol=1e-5)


def open_clip_names(model):
    """The weights of transformers' CLIP as OpenCLIP names and shapes them, written out by hand."""
    held = model.state_dict()
    found = {
        "visual.class_embedding": held["vision_model.embeddings.class_embedding"],
        "visual.positional_embedding": held["vision_model.embeddings.position_embedding.weight"],
        "visual.conv1.weight": held["vision_model.embeddings.patch_embedding.weight"],
        "visual.proj": held["visual_projection.weight"].T,
        "positional_embedding": held["text_model.embeddings.position_embedding.weight"],
        "token_embedding.weight": held["text_model.embeddings.token_embedding.weight"],
        "text_projection": held["text_projection.weight"].T,
        "logit_scale": held["logit_scale"],
    }
    norms = {
        "visual.ln_pre": "vision_model.pre_layrnorm",
        "visual.ln_post": "vision_model.post_layernorm",
        "ln_final": "text_model.final_layer_norm",
    }
    for layer in range(2):
        for before, tower in (("visual.transformer", "vision_model"), ("transformer", "text_model")):
            ours, theirs = f"{before}.resblocks.{layer}", f"{tower}.encoder.layers.{layer}"
            for part in ("weight", "bias"):
                chunks = [held[f"{theirs}.self_attn.{which}_proj.{part}"] for which in "qkv"]
                found[f"{ours}.attn.in_proj_{part}"] = torch.cat(chunks)
            norms |= {f"{ours}.ln_1": f"{theirs}.layer_norm1", f"{ours}.ln_2": f"{theirs}.layer_norm2"}
            norms |= {f"{ours}.attn.out_proj": f"{theirs}.self_attn.out_proj"}
            norms |= {f"{ours}.mlp.c_fc": f"{theirs}.mlp.fc1", f"{ours}.mlp.c_proj": f"{theirs}.mlp.fc2"}
    for ours, theirs in norms.items():
        for part in ("weight", "bias"):
            found[f"{ours}.{part}"] = held[f"{theirs}.{part}"]
    return found


def test_hpsv2s_weights_go_into_a_clip_of_their_shape(clip_folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = transformers.CLIPModel.from_pretrained(clip_folder)
    torch.manual_seed(3)
    for one in model.parameters():
        nn.init.normal_(one.data, std=0.3)
    theirs = open_clip_names(model)
    mapped = renamed(theirs)
    assert mapped.keys() == dict(model.named_parameters()).keys()
    torch.save({"state_dict": theirs, "epoch": 1}, tmp_path / "HPS.pt")
    tuned, plain = Clip(clip_folder, tmp_path / "HPS.pt"), Clip(clip_folder)
    pixels = torch.zeros(1, 3, 16, 16)
    with torch.inference_mode():
        wanted = model.eval().get_image_features(pixel_values=pixels)
        found = tuned._model.get_image_features(pixel_values=pixels)
    wanted, found = (one if isinstance(one, torch.Tensor) else one.pooler_output for one in (wanted, found))
    assert torch.equal(wanted, found)
    assert np.abs(tuned.of_texts(["a"]) - plain.of_texts(["a"])).max() > 1e-3
    theirs.pop("visual.proj")
    torch.save({"state_dict": theirs}, tmp_path / "part.pt")
    with pytest.raises(ValueError, match="does not fit the CLIP"):
        Clip(clip_folder, tmp_path / "part.pt")


def test_the_aesthetic_score_is_what_its_layers_say(tmp_path):
    torch.manual_seed(4)
    layers = nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.2), nn.Linear(6, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    torch.save({f"layers.{name}": value for name, value in layers.state_dict().items()}, tmp_path / "head.pth")
    head = AestheticPredictor(tmp_path / "head.pth")
    features = np.random.default_rng(5).standard_normal((5, 8))
    with torch.inference_mode():
        wanted = layers.eval().double()(torch.from_numpy(features))[:, 0].numpy()
    np.testing.assert_allclose(head(features), wanted, atol=1e-12)
    assert head.width == 8
    with pytest.raises(ValueError, match=r"expected features \[n, 8\]"):
        head(features[:, :7])
    torch.save({"layers.0.weight": torch.zeros(2, 8), "layers.0.bias": torch.zeros(2)}, tmp_path / "two.pth")
    with pytest.raises(ValueError, match="end in one score"):
        AestheticPredictor(tmp_path / "two.pth")


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_missing_file_is_named_with_its_licence_and_its_place(kind, tmp_path):
    one = PUBLISHED[kind]
    for given, told in ((None, "no file was named"), (tmp_path / "none", "there is nothing at")):
        with pytest.raises(ValueError, match=told) as refused:
            check_weights(given, kind)
        for part in (one.file, one.licence, one.published):
            assert part in str(refused.value)


def test_a_missing_clip_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected a folder in the format of transformers"):
        Clip(tmp_path / "none")
    with pytest.raises(ValueError, match="expected a CLIP"):
        Clip(tmp_path)
