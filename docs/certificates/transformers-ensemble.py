"""huggingface/transformers, _speculative_sampling with assistant_ensemble_weight 0.5: parts from the target's distribution: total variation 0.5

Run: python transformers-ensemble.py FOLDER   # of a clone of https://github.com/huggingface/transformers at 5.23.0
"""
import __future__, ast, collections, contextlib, functools, math, random, sys, types
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import torch
sys.path.pop(0)  # this folder has a transformers.py too
def transformers(folder, weight=None):
    from transformers.generation.utils import _speculative_sampling

    def called(candidate_input_ids, candidate_logits, candidate_length, new_logits):
        arrays = (torch.from_numpy(candidate_input_ids), torch.from_numpy(candidate_logits))
        return _speculative_sampling(*arrays, candidate_length, torch.from_numpy(new_logits), weight)
    return called
scripted_noise = lambda *_: contextlib.nullcontext()  # theirs
theirs = SimpleNamespace(verify=transformers(Path(sys.argv[1]), weight=0.5))
P = {(): np.array([1.0, 0.0]), (0,): np.array([1.0, 0.0]), (1,): np.array([1.0, 0.0])}  # target's distribution after these tokens
Q = {(): np.array([0.0, 1.0]), (0,): np.array([0.0, 1.0]), (1,): np.array([0.0, 1.0])}  # drafter's
parents, drafts = [-1, 0], [(1.0, (0, 1))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[(), (1,)]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(20000):
    at = random.choice(len(drafts), p=[one[0] for one in drafts])
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
    logits = [np.log(np.maximum(one, 1e-38))[None].astype("f4") for one in (q[:-1], p)]
    out = theirs.verify(
        candidate_input_ids=np.array([tokens]), candidate_logits=logits[0],
        candidate_length=len(tokens) - 1, new_logits=logits[1])
    out = np.asarray(out[0]).reshape(-1)[: int(out[1]) + 1].tolist()
    before, got = (), len(())
    out = [int(one) for one in out]
    while len(out) <= got:  # go on as the target does
        out.append(int(random.choice(2, p=P[tuple(out)])))
    if tuple(out[:got]) == before:
        count[out[got]] += 1
print("next token after", before, "should have", [1.0, 0.0])
print("it has", [round(count[token] / max(1, count.total()), 4) for token in range(2)], "of", count.total())
