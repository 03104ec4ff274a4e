"""A CLIP of two layers with a tokenizer of letters, in the format of transformers."""

import json
from pathlib import Path

import pytest
import torch

FEATURES = 8
SIDE = 16


def write_clip(folder: Path) -> Path:
    transformers = pytest.importorskip("transformers")
    letters = [chr(one) for one in range(ord("a"), ord("z") + 1)]
    words = [*letters, *(f"{one}</w>" for one in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: place for place, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    transformers.CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt")).save_pretrained(folder)
    text = {"vocab_size": len(words), "max_position_embeddings": 12, "eos_token_id": len(words) - 1}
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config={**sizes, **text, "bos_token_id": len(words) - 2},
        vision_config={**sizes, "image_size": SIDE, "patch_size": 8},
        projection_dim=FEATURES,
    )
    torch.manual_seed(2)
    transformers.CLIPModel(config).save_pretrained(folder)
    return folder
