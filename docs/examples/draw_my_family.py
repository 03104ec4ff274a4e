"""Draw with a family of one's own on a Llama of random weights: `jacobi-lookup` gives plain decoding's tokens."""

from pathlib import Path
from runpy import run_path

import torch
import transformers

import underpaint

family = run_path(str(Path(__file__).with_name("my_family.py")))["family"]
config = transformers.LlamaConfig(
    vocab_size=80, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
)
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(config)

prompt = [1, 2, 3, 7]
plain = underpaint.accelerate(model, "ar", family=family).generate(prompt, temperature=0)
fast = underpaint.accelerate(model, "jacobi-lookup", family=family).generate(prompt, temperature=0)
assert plain.token_ids.tolist() == fast.token_ids.tolist()
print(
    f"the same {len(plain.drawing.tokens)} tokens in {fast.drawing.target_nfe} passes, not {plain.drawing.target_nfe}"
)
