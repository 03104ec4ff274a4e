"""Infini-AI-Lab/Sequoia, accept_step of SpecInfer's trees: parts from the target's distribution: token 0 is accepted, its target probability is 0; so it happens with probability 1.11e-16

Run: python specinfer-in-sequoia.py FOLDER   # of a clone of https://github.com/Infini-AI-Lab/Sequoia at 0ff3ff7
"""
import __future__, ast, collections, contextlib, functools, math, random, sys, types
from math import inf
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import torch
def load(path, *names, **given):
    kept = []
    for name in names:
        owner, _, method = name.partition('.')
        tops = ast.parse(path.read_text(encoding='utf-8')).body
        found = [one for one in tops if getattr(one, 'name', '') == owner]
        if method and found:
            found = [one for one in found[0].body if getattr(one, 'name', '') == method]
        if not found:
            raise ValueError(f'{path}: expected {name}; take the commit that the page names')
        kept.append(found[0])
    for one in (inner for top in kept for inner in ast.walk(top)):
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            one.decorator_list = []
        if isinstance(one, ast.ClassDef):
            one.bases, one.keywords = ([], [])
    space = {'torch': torch, 'F': torch.nn.functional, 'softmax': torch.nn.functional.softmax}
    space |= {'nn': torch.nn, 'random': random, 'np': np, 'math': math, **given}
    flags = __future__.annotations.compiler_flag
    exec(compile(ast.Module(body=kept, type_ignores=[]), str(path), 'exec', flags), space)
    return space[kept[0].name]
def sequoia(folder, place, owner, dtype=torch.float64):
    residual = load(folder / 'utils.py', 'get_residual')
    step = load(folder / place, f'{owner}.accept_step', get_residual=residual, ChildrenAccept=tuple)

    def verify(draft, uniforms):
        model = SimpleNamespace(ground_truth_len=1, temperature=1.0, dtype=dtype, residual_graph=residual, Successors=draft.tree.children(), tokens=torch.from_numpy(draft.tree.tokens.copy()), r=torch.from_numpy(uniforms).to(dtype), target_logits=torch.from_numpy(draft.target_probs).to(dtype), draft_logits=torch.log(torch.from_numpy(draft.tree.draft_probs.copy())).to(dtype))
        path, node = ([], 0)
        while True:
            child, left = step(model, node)
            if child == -1:
                with scripted_noise([], uniforms[-1:]):
                    return (path, int(left.multinomial(1)))
            path.append(int(child))
            node = int(child)
    return verify
noise = iter([0.0, 0.0])
random.random = lambda: next(noise)
torch.rand = lambda shape, *_, **__: torch.tensor([next(noise) for _ in range(int(np.prod(shape)))]).reshape(shape)
torch.rand_like = lambda one, **_: torch.rand(one.shape)
theirs = SimpleNamespace(verify=sequoia(Path(sys.argv[1]), place='Tree/SpecInferTree.py', owner='SpecInferTree'))
P = {(): np.array([0.0, 1.0]), (0,): np.array([0.0, 1.0]), (1,): np.array([0.0, 1.0])}  # target's distribution after these tokens
Q = {(): np.array([1.0, 0.0]), (0,): np.array([1.0, 0.0]), (1,): np.array([1.0, 0.0])}  # drafter's
R = P  # the target's before logit processors
parents, drafts = [-1, 0], [(1.0, (0, 0))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[(), (0,)]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(1):
    at = 0
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
    tree = types.SimpleNamespace(
        tokens=np.array(tokens), parents=np.array(parents), drawn='iid', draft_probs=q, size=len(tokens))
    draft = types.SimpleNamespace(
        tree=tree, target_probs=p.copy(), raw_probs=np.array([R[one] for one in after[at]]),
        allowed=~np.isin(np.arange(2), []))
    path, token = theirs.verify(draft, np.array([0.0, 0.0, 0.0]))
    out = [tokens[node] for node in path] + [int(token)]
    print(tokens, 'gives', out)
