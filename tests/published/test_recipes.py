"""What checkpoints may say that no published one says: told in words, never a KeyError or a wrong row."""

import json
from pathlib import Path

import pytest
import torch

from tests.published.text_models import save_qwen
from underpaint.models.published.files import CheckpointError, read_checkpoint
from underpaint.models.published.llama import image_ids
from underpaint.models.published.load import load
from underpaint.models.published.options import LoadOptions
from underpaint.models.published.recipes import count_layers


def test_layers_are_counted_by_their_numbers() -> None:
    assert count_layers(["layers.0.a", "layers.11.b", "layers.norm.weight", "head.3.c"], "layers.") == 12
    assert count_layers(["norm.weight"], "layers.") == 0


def test_image_tokens_are_read_from_their_names() -> None:
    names = {"<s>": 1, "IMGIMGBAZ": 4, **{f"IMGIMG{letter}Z": 9 for letter in "ABCDEFGHIJ"}}
    assert torch.equal(image_ids(names), torch.tensor([9] * 10 + [4]))
    with pytest.raises(CheckpointError, match="spelt in A to J, got 'AX'"):
        image_ids({"IMGIMGAZ": 3, "IMGIMGAXZ": 4})
    with pytest.raises(CheckpointError, match="got ''"):
        image_ids({"IMGIMG": 3})
    with pytest.raises(CheckpointError, match="with gaps"):
        image_ids({"IMGIMGBZ": 3})
    with pytest.raises(CheckpointError, match="with gaps"):
        image_ids({})


@pytest.mark.parametrize("first", [-5, 60])
def test_codes_outside_the_embedding_are_refused(tmp_path: Path, first: int) -> None:
    save_qwen(tmp_path)
    with pytest.raises(CheckpointError, match=f"among the 64 of the embedding, got {first} to"):
        load("tar-lm", tmp_path, options=LoadOptions(grid_side=4, prefix=8, first_code=first))


@pytest.mark.parametrize("listed", [[], ["a.safetensors"], "a.safetensors", None])
def test_an_index_without_a_map_of_shards_is_refused(tmp_path: Path, listed: object) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    with pytest.raises(CheckpointError, match="expected the shards"):
        read_checkpoint(tmp_path)
