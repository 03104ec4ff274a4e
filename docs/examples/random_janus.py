"""Save a small Janus with random weights in the folder that is named: something to try `--live` on without a download.

Its pictures are noise, 12 x 12 cells. A prompt is ids from 0 to 511 that end with 1, which begins a picture.
"""

import sys

import torch
import transformers


def random_janus(side=12, codes=256, width=128, layers=4, vocabulary=512):
    """A Janus that draws side x side cells."""
    text = {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "bos_token_id": 0,
        "pad_token_id": 2,
        "eos_token_id": 3,
    }
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 4 * side,
        "patch_size": 4,
        "projection_dim": width,
        "num_image_tokens": side * side,
        "mlp_ratio": 2.0,
    }
    tokenizer = {
        "embed_dim": 8,
        "num_embeddings": codes,
        "latent_channels": 8,
        "base_channels": 32,
        "channel_multiplier": [1, 1, 2],
        "num_res_blocks": 1,
        "projection_dim": width,
        "image_token_embed_dim": width,
        "num_patches": side,
    }
    config = transformers.JanusConfig(text_config=text, vision_config=vision, vq_config=tokenizer, image_token_id=5)
    model = transformers.JanusForConditionalGeneration(config)
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=0, pad_token_id=2, eos_token_id=3, generation_kwargs={"boi_token_id": 1}
    )
    return model


if __name__ == "__main__":
    torch.manual_seed(0)
    random_janus().save_pretrained(sys.argv[1])
    print("saved a Janus of random weights in", sys.argv[1])
