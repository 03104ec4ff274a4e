"""Save a small Janus with random weights in the folder that is named: something to try `--live` on without a download.

Its pictures are noise, 12 x 12 cells. A prompt is ids from 0 to 511 that end with 1, which begins a picture.
"""

import sys

import torch
import transformers

SIDE, CODES, WIDTH = 12, 256, 128

text = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": WIDTH,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
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
    "image_size": 4 * SIDE,
    "patch_size": 4,
    "projection_dim": WIDTH,
    "num_image_tokens": SIDE * SIDE,
}
tokenizer = {
    "embed_dim": 8,
    "num_embeddings": CODES,
    "latent_channels": 8,
    "base_channels": 32,
    "channel_multiplier": [1, 1, 2],
    "num_res_blocks": 1,
    "projection_dim": WIDTH,
    "image_token_embed_dim": WIDTH,
    "num_patches": SIDE,
}
config = transformers.JanusConfig(text_config=text, vision_config=vision, vq_config=tokenizer, image_token_id=5)
torch.manual_seed(0)
model = transformers.JanusForConditionalGeneration(config)
model.generation_config = transformers.GenerationConfig(
    bos_token_id=0, pad_token_id=2, eos_token_id=3, generation_kwargs={"boi_token_id": 1}
)
model.save_pretrained(sys.argv[1])
print("saved a Janus of random weights in", sys.argv[1])
