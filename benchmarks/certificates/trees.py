"""Adapters of public verifiers of trees: 5 to 20 lines each."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.certificates.sources import Verify, load
from underpaint.sim.certify.token_wise import offered_by
from underpaint.testing import scripted_noise


def posterior(folder: Path, place: str) -> Verify:
    """Adapter of EAGLE's `evaluate_posterior` in the file `place`."""
    verify = load(folder / place, "evaluate_posterior")

    def called(logits: Any, candidates: Any, retrieve_indices: Any, logits_processor: Any) -> Any:
        return verify(torch.from_numpy(logits), torch.from_numpy(candidates), logits_processor)

    return called


def angelslim(folder: Path) -> Verify:
    """Adapter of a verifier that draws the extra token itself; it returns it as a distribution of one token."""
    called = posterior(folder, "angelslim/compressor/speculative/utils/util.py")

    def drawn(logits: Any, **arrays: Any) -> Any:
        best, accepted, token = called(logits=logits, **arrays)
        return best, accepted, torch.nn.functional.one_hot(token.reshape(()), logits.shape[-1])

    return drawn


def nearest(size: int) -> Any:
    """Return each code's neighbours on a line, itself first, like LANTERN's table of nearest latents."""
    near = [sorted(range(size), key=lambda other, code=code: abs(other - code)) for code in range(size)]
    return SimpleNamespace(nearest_latents=torch.tensor([[*row, row[-1]] for row in near]))


def lantern(folder: Path, k: int, relaxed: bool) -> Verify:
    verify = load(folder / "models/ea_model_llamagen.py", "EaModel.evaluate_posterior")

    def called(logits: Any, candidates: Any, retrieve_indices: Any, logits_processor: Any) -> Any:
        size = logits.shape[-1]
        tensors = torch.from_numpy(logits), torch.from_numpy(candidates), logits_processor
        return verify(nearest(size), *tensors, relaxed, min(k, size - 1), 0.1)

    return called


def lantern_static(folder: Path, relaxed: bool) -> Verify:
    """Adapter for trees of fixed shape, whose siblings are drawn without replacement."""
    verify = load(folder / "models/ea_model_llamagen.py", "EaModel.evaluate_posterior_v1")

    def called(draft: Any, uniforms: Any) -> Any:
        tree = draft.tree
        paths = sorted([0, *tree.path_to(leaf)] for leaf in tree.leaves)  # siblings in the order they were drawn
        longest = max(map(len, paths))
        at = np.array([path + [-1] * (longest - len(path)) for path in paths])
        parents = tree.parents.tolist()
        before = [[one for one in range(1, node) if parents[one] == parents[node]] for node in range(tree.size)]
        offered = [
            offered_by(draft, max(0, parents[node]), token, [int(tree.tokens[one]) for one in before[node]])[token]
            for node, token in enumerate(tree.tokens.tolist())
        ]
        with scripted_noise(uniforms[1:-1], uniforms[-1:]):
            best, accepted, probs = verify(
                nearest(len(draft.allowed)), torch.log(torch.from_numpy(draft.target_probs))[at],
                torch.from_numpy(np.where(at < 0, -1, tree.tokens[at])), lambda _, rows: rows,
                torch.tensor(offered, dtype=torch.float64)[at], [torch.from_numpy(tree.draft_probs.copy())] * longest,
                np.array(parents)[at].tolist(), torch.from_numpy(tree.tokens.copy())[None],
                [[torch.tensor(before[node], dtype=torch.long) for node in row] for row in at], relaxed, 1, 0.1,
            )  # fmt: skip
            return paths[int(best)][1 : accepted + 1], int(torch.multinomial(probs, 1))

    return called


def medusa(folder: Path) -> Verify:
    """Adapter of Medusa: candidates are padded with token 0, and the last accepted token's row gives the next token."""
    verify = load(folder / "medusa/model/utils.py", "evaluate_posterior")

    def called(logits: Any, candidates: Any, retrieve_indices: Any, logits_processor: Any) -> Any:
        padded = np.where(candidates < 0, 0, candidates)
        rows = logits_processor(None, torch.from_numpy(logits))
        best, accepted = verify(rows, torch.from_numpy(padded), 1.0)
        return best, accepted, torch.softmax(rows[best, accepted], dim=-1)

    return called


def sequoia(folder: Path, place: str, owner: str, dtype: Any = torch.float64) -> Verify:
    """Adapter of `accept_step` from the root down; then a token is drawn from the distribution that it leaves."""
    residual = load(folder / "utils.py", "get_residual")
    step = load(folder / place, f"{owner}.accept_step", get_residual=residual, ChildrenAccept=tuple)

    def verify(draft: Any, uniforms: Any) -> Any:
        model = SimpleNamespace(
            ground_truth_len=1, temperature=1.0, dtype=dtype, residual_graph=residual,
            Successors=draft.tree.children(), tokens=torch.from_numpy(draft.tree.tokens.copy()),
            r=torch.from_numpy(uniforms).to(dtype), target_logits=torch.from_numpy(draft.target_probs).to(dtype),
            draft_logits=torch.log(torch.from_numpy(draft.tree.draft_probs.copy())).to(dtype),
        )  # fmt: skip
        path, node = [], 0
        while True:
            child, probs = step(model, node)
            if child == -1:
                with scripted_noise([], uniforms[-1:]):
                    return path, int(probs.multinomial(1))
            path.append(int(child))
            node = int(child)

    return verify


def opt_tree(folder: Path) -> Verify:
    """Adapter of a verifier that draws a token after every node and keeps the longest path that agrees."""
    verify = load(folder / "opt_classic/utils.py", "verify")

    def called(draft: Any, uniforms: Any) -> Any:
        tree, size = draft.tree, draft.tree.size
        above = tree.parents[1:].tolist()
        # Indices leave out the root; its children name themselves.
        parents = torch.tensor([node if not one else one - 1 for node, one in enumerate(above)])
        nothing = torch.zeros(1, 0, dtype=torch.long), torch.ones(1), torch.ones(1, 1), torch.zeros(1)
        with scripted_noise([], uniforms[:size]):
            outputs = verify(
                torch.zeros(1, 0, dtype=torch.long), torch.log(torch.from_numpy(draft.target_probs))[None],
                torch.from_numpy(tree.tokens.copy())[None], torch.from_numpy(tree.depths().copy()) + 1, None,
                [torch.zeros(1, size, 1)], torch.tensor([size]), parents, SimpleNamespace(draft=lambda *_: nothing),
                0, 0, 0, lambda _, scores: scores,
            )  # fmt: skip
        path, node = [], 0
        for token in outputs[1][1:]:
            node = next(child for child in tree.children()[node] if tree.tokens[child] == token)
            path.append(node)
        return path, int(outputs[3][0, 0])

    return called
