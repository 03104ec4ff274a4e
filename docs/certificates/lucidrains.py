"""lucidrains/speculative-decoding, speculative_decoding: parts from the target's distribution: token 0 is accepted, its target probability is 0; so it happens with probability 5.96e-08

Run: python lucidrains.py FOLDER   # of a clone of https://github.com/lucidrains/speculative-decoding at 72171ac
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
class CycleEnded(Exception):
    """Raised by a stand-in for a model as a second cycle begins."""
def tensors(draft_probs, target_probs):
    return (torch.from_numpy(draft_probs), torch.from_numpy(target_probs))
def lucidrains(folder):
    axes = {'b -> b 1 1': lambda one: one[:, None, None], 'b n 1 -> b n': lambda one: one[..., 0], 'b -> b 1': lambda one: one[:, None], 'b 1 d -> b d': lambda one: one[:, 0], '... -> ... 1': lambda one: one[..., None]}
    loop = load(folder / 'speculative_decoding/speculative_decoding.py', 'speculative_decoding', 'find_first_true_index', 'safe_div', top_k=lambda rows, thres: rows, rearrange=lambda one, pattern: axes[pattern](one))

    def called(draft_probs, target_probs, draft_tokens):
        drafted, target = (one.log()[None] for one in tensors(draft_probs, target_probs))
        count, seen, remaining_tokens = (len(draft_tokens), [], list(draft_tokens))
        cache = (torch.zeros(1, 99, 1), None)

        def small(out, **_):
            seen.append(out)
            if len(seen) > count:
                raise CycleEnded
            return (drafted[:, len(seen) - 1:len(seen)], cache)
        loop.__globals__['gumbel_sample'] = lambda *_, **__: torch.tensor([remaining_tokens.pop(0)])
        try:
            output = loop(lambda *_, **__: (target, cache), small, torch.tensor([[0]]), count + 2, count)
            return output[0][0].tolist()
        except CycleEnded:
            return seen[-1][0, 1:].tolist()
    return called
noise = iter([0.0, 0.0])
random.random = lambda: next(noise)
torch.rand = lambda shape, *_, **__: torch.tensor([next(noise) for _ in range(int(np.prod(shape)))]).reshape(shape)
torch.rand_like = lambda one, **_: torch.rand(one.shape)
theirs = SimpleNamespace(verify=lucidrains(Path(sys.argv[1])))
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
