"""romsto/Speculative-Decoding, speculative_generate: parts from the target's distribution: token 0 is accepted, its target probability is 0; so it happens with probability 5.96e-08

Run: python romsto.py FOLDER   # of a clone of https://github.com/romsto/Speculative-Decoding at db7db67
"""
import __future__, ast, collections, contextlib, functools, math, random, sys, types
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import torch
def load(path, *names, **given):
    tree = ast.parse(path.read_text(encoding='utf-8').expandtabs(4))
    for one in ast.walk(tree):
        if isinstance(one, ast.ClassDef):
            one.bases, one.keywords = ([], [])
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            one.decorator_list = []
    definitions = {one.name: one for one in reversed(tree.body) if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    definitions |= {f'{name}.{one.name}': one for name in definitions for one in definitions[name].body if hasattr(one, 'name')}
    if (missing := [name for name in names if name not in definitions]):
        raise ValueError(f'{path}: expected {missing[0]}; take the commit that the page names')
    space = {'torch': torch, 'nn': torch.nn, 'F': torch.nn.functional, 'np': np, 'math': math}
    space |= {'softmax': torch.nn.functional.softmax, 'random': random, **given}
    module = ast.Module(body=[definitions[name] for name in names], type_ignores=[])
    flags = __future__.annotations.compiler_flag
    exec(compile(module, str(path), 'exec', flags), space)
    return space[definitions[names[0]].name]
def tensors(draft_probs, target_probs):
    return (torch.from_numpy(draft_probs), torch.from_numpy(target_probs))
class CycleEnded(Exception):
    """Raised by a stand-in for a model as a second cycle begins."""
def romsto(folder):
    generate = load(folder / 'sampling/speculative_decoding.py', 'speculative_generate', 'max_fn', GreedyProcessor=object)

    def called(draft_probs, target_probs, draft_tokens):
        drafted, target = tensors(draft_probs, target_probs)
        remaining_tokens, seen = (list(draft_tokens), [])
        sizes = SimpleNamespace(vocab_size=target.shape[1], max_position_embeddings=99)

        class Model:
            device, config = ('cpu', sizes)

            def __init__(self, rows):
                self.rows = rows

            def __call__(self, input_ids, **_):
                seen.append(input_ids[0].tolist())
                if len(seen) > len(draft_tokens) + 1:
                    raise CycleEnded
                rows = self.rows if self.rows is target else drafted[len(seen) - 1:len(seen)]
                return SimpleNamespace(logits=rows[None], past_key_values=None)

        class Processor:

            def __call__(self, rows):
                return rows

            def sample(self, row):
                return torch.tensor([[remaining_tokens.pop(0)]]) if remaining_tokens else torch.multinomial(row.reshape(1, -1), 1)
        try:
            return generate([0], Model(drafted), Model(target), tokenizer=None, gamma=len(draft_tokens), logits_processor=Processor(), max_gen_len=len(draft_tokens) + 1, eos_tokens_id=-7, pad_token_id=0, use_cache=False, first_target=False, skip_sample_adjustment=False, debug=False)[0]
        except CycleEnded:
            return seen[-1][1:]
    return called
noise = iter([0.0, 0.0])
random.random = lambda: next(noise)
torch.rand = lambda shape, *_, **__: torch.tensor([next(noise) for _ in range(int(np.prod(shape)))]).reshape(shape)
torch.rand_like = lambda one, **_: torch.rand(one.shape)
theirs = SimpleNamespace(verify=romsto(Path(sys.argv[1])))
P = {(): np.array([0.0, 1.0]), (0,): np.array([0.0, 1.0]), (1,): np.array([0.0, 1.0])}  # target's distribution after these tokens
Q = {(): np.array([1.0, 0.0]), (0,): np.array([1.0, 0.0]), (1,): np.array([1.0, 0.0])}  # drafter's
parents, drafts = [-1, 0], [(1.0, (0, 0))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[(), (0,)]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(1):
    at = 0
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
    out = theirs.verify(
        draft_probs=q[:-1].astype("f4"), target_probs=p.astype("f4"), draft_tokens=list(tokens[1:]))
    print(tokens, 'gives', out)
