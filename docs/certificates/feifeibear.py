"""feifeibear/LLMSpeculativeSampling, speculative_sampling: parts from the target's distribution: RuntimeError: 

Run: python feifeibear.py FOLDER   # of a clone of https://github.com/feifeibear/LLMSpeculativeSampling at 59a209d
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
class Cache:

    def __init__(self, model, *_):
        self.tokens, self.rows, self._prob_history = (model.tokens, model.rows, None)

    def generate(self, prefix, count):
        self._prob_history = self.rows[None].clone()
        return torch.cat([prefix, torch.tensor([self.tokens])], dim=1) if self.tokens else prefix

    def rollback(self, end):
        self._prob_history = self._prob_history[:, :end]
def tensors(draft_probs, target_probs):
    return (torch.from_numpy(draft_probs), torch.from_numpy(target_probs))
def feifeibear(folder):
    sample = load(folder / 'sampling/utils.py', 'sample')
    max_fn = load(folder / 'sampling/utils.py', 'max_fn')
    loop = load(folder / 'sampling/speculative_sampling.py', 'speculative_sampling', sample=sample, max_fn=max_fn, KVCacheModel=Cache)

    def called(draft_probs, target_probs, draft_tokens, seed=None):
        drafted, target = tensors(draft_probs, target_probs)
        drafter = SimpleNamespace(device='cpu', tokens=draft_tokens, rows=drafted)
        model = SimpleNamespace(device='cpu', tokens=[], rows=target)
        return loop(torch.tensor([[0]]), drafter, model, 1, len(draft_tokens), random_seed=seed)[0, 1:].tolist()
    return called
noise = iter([0.0])
random.random = lambda: next(noise)
torch.rand = lambda shape, *_, **__: torch.tensor([next(noise) for _ in range(int(np.prod(shape)))]).reshape(shape)
torch.rand_like = lambda one, **_: torch.rand(one.shape)
theirs = SimpleNamespace(verify=feifeibear(Path(sys.argv[1])))
P = {(): np.array([1.0, 0.0])}  # target's distribution after these tokens
Q = {(): np.array([0.0, 1.0])}  # drafter's
parents, drafts = [-1], [(1.0, (0,))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[()]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(1):
    at = 0
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
    out = theirs.verify(
        draft_probs=q[:-1].astype("f4"), target_probs=p.astype("f4"), draft_tokens=list(tokens[1:]))
    print(tokens, 'gives', out)
