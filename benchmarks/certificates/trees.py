"""Adapters of public verifiers of trees: 5 to 20 lines each."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.certificates.sources import PublicVerifier, load, method
from underpaint.testing import scripted_noise

Verify = Callable[..., Any]


def _posterior(place: str) -> Callable[[Path], Verify]:
    """EAGLE's `evaluate_posterior` in the file `place`."""

    def build(folder: Path) -> Verify:
        verify = load(folder / place, ["evaluate_posterior"])["evaluate_posterior"]

        def called(logits: Any, candidates: Any, retrieve_indices: Any, logits_processor: Any) -> Any:
            return verify(torch.from_numpy(logits), torch.from_numpy(candidates), logits_processor)

        return called

    return build


def _angelslim(folder: Path) -> Verify:
    """It draws the extra token itself, which comes back as a distribution of one token."""
    called = _posterior("angelslim/compressor/speculative/utils/util.py")(folder)

    def drawn(logits: Any, **arrays: Any) -> Any:
        best, accepted, token = called(logits=logits, **arrays)
        return best, accepted, torch.nn.functional.one_hot(token.reshape(()), logits.shape[-1])

    return drawn


def _lantern(k: int, delta: float, relaxed: bool) -> Callable[[Path], Verify]:
    def build(folder: Path) -> Verify:
        verify = method(folder / "models/ea_model_llamagen.py", "EaModel", "evaluate_posterior")

        def called(logits: Any, candidates: Any, retrieve_indices: Any, logits_processor: Any) -> Any:
            size = logits.shape[-1]
            near = [sorted(range(size), key=lambda other, own=own: abs(other - own)) for own in range(size)]
            model = SimpleNamespace(nearest_latents=torch.tensor([[*row, row[-1]] for row in near]))
            tensors = torch.from_numpy(logits), torch.from_numpy(candidates), logits_processor
            return verify(model, *tensors, relaxed, min(k, size - 1), delta)

        return called

    return build


def _medusa(folder: Path) -> Verify:
    """Its candidates are padded with token 0; the next token is drawn from the row of the last accepted one."""
    verify = load(folder / "medusa/model/utils.py", ["evaluate_posterior"])["evaluate_posterior"]

    def called(logits: Any, candidates: Any, retrieve_indices: Any, logits_processor: Any) -> Any:
        padded = np.where(candidates < 0, 0, candidates)
        rows = logits_processor(None, torch.from_numpy(logits))
        best, accepted = verify(rows, torch.from_numpy(padded), 1.0)
        return best, accepted, torch.softmax(rows[best, accepted], dim=-1)

    return called


def _sequoia(place: str, owner: str) -> Callable[[Path], Verify]:
    """`accept_step` from the root down, then a draw from what it leaves."""

    def build(folder: Path) -> Verify:
        residual = load(folder / "utils.py", ["get_residual"])["get_residual"]
        step = method(folder / place, owner, "accept_step", get_residual=residual, ChildrenAccept=tuple)

        def verify(draft: Any, uniforms: Any) -> Any:
            model = SimpleNamespace(
                ground_truth_len=1,
                temperature=1.0,
                dtype=torch.float64,
                residual_graph=residual,
                Successors=draft.tree.children(),
                tokens=torch.from_numpy(draft.tree.tokens.copy()),
                r=torch.from_numpy(uniforms),
                target_logits=torch.from_numpy(draft.target_probs),
                draft_logits=torch.log(torch.from_numpy(draft.tree.draft_probs.copy())),
            )
            path, node = [], 0
            while True:
                child, left = step(model, node)
                if child == -1:
                    with scripted_noise([], uniforms[-1:]):
                        return path, int(left.multinomial(1))
                path.append(int(child))
                node = int(child)

        return verify

    return build


def _opt_tree(folder: Path) -> Verify:
    """It draws a token after every node and keeps the longest path that agrees."""
    verify = load(folder / "opt_classic/utils.py", ["verify"])["verify"]

    def called(draft: Any, uniforms: Any) -> Any:
        tree, size = draft.tree, draft.tree.size
        above = tree.parents[1:].tolist()
        # Counted without the root, whose children name themselves.
        parents = torch.tensor([node if not one else one - 1 for node, one in enumerate(above)])
        nothing = torch.zeros(1, 0, dtype=torch.long), torch.ones(1), torch.ones(1, 1), torch.zeros(1)
        with scripted_noise([], uniforms[:size]):
            found = verify(
                torch.zeros(1, 0, dtype=torch.long), torch.log(torch.from_numpy(draft.target_probs))[None],
                torch.from_numpy(tree.tokens.copy())[None], torch.from_numpy(tree.depths().copy()) + 1, None,
                [torch.zeros(1, size, 1)], torch.tensor([size]), parents, SimpleNamespace(draft=lambda *_: nothing),
                0, 0, 0, lambda _, scores: scores,
            )  # fmt: skip
        path, node = [], 0
        for token in found[1][1:]:
            node = next(child for child in tree.children()[node] if tree.tokens[child] == token)
            path.append(node)
        return path, int(found[3][0, 0])

    return called


TREES: tuple[PublicVerifier, ...] = (
    PublicVerifier(
        "eagle", "SafeAILab/EAGLE", "evaluate_posterior", _posterior("eagle/model/utils.py"), "eagle", "top_k", False
    ),
    PublicVerifier(
        "spec-bench-eagle2",
        "hemingkx/Spec-Bench",
        "EAGLE-2's evaluate_posterior, with logit processors",
        _posterior("model/eagle2/utils.py"),
        "eagle",
        "top_k",
        False,
    ),
    PublicVerifier(
        "spec-bench-eagle3",
        "hemingkx/Spec-Bench",
        "EAGLE-3's evaluate_posterior, with logit processors",
        _posterior("model/eagle3/utils.py"),
        "eagle",
        "top_k",
        False,
    ),
    PublicVerifier(
        "spec-bench-samd",
        "hemingkx/Spec-Bench",
        "SAMD's evaluate_posterior, with logit processors",
        _posterior("model/samd/tree_model/eagle2/utils.py"),
        "eagle",
        "top_k",
        False,
    ),
    PublicVerifier("angelslim", "Tencent/AngelSlim", "evaluate_posterior", _angelslim, "eagle", "top_k", False),
    PublicVerifier(
        "lantern-off",
        "jadohu/LANTERN",
        "evaluate_posterior of dynamic trees, relaxation off",
        _lantern(1, 0.1, False),
        "eagle",
        "top_k",
        False,
    ),
    PublicVerifier(
        "lantern-k1",
        "jadohu/LANTERN",
        "evaluate_posterior of dynamic trees, one neighbour, delta 0.1",
        _lantern(1, 0.1, True),
        "eagle",
        "top_k",
        False,
        "pools the probability of neighbouring codes",
    ),
    PublicVerifier(
        "medusa",
        "FasterDecoding/Medusa",
        "typical acceptance",
        _medusa,
        "eagle",
        "top_k",
        False,
        "typical acceptance keeps what is likely enough",
    ),
    PublicVerifier(
        "sequoia",
        "Infini-AI-Lab/Sequoia",
        "accept_step of its trees",
        _sequoia("Tree/SpecTree.py", "SpecTree"),
        "function",
        "without_replacement",
        False,
    ),
    PublicVerifier(
        "specinfer-in-sequoia",
        "Infini-AI-Lab/Sequoia",
        "accept_step of SpecInfer's trees",
        _sequoia("Tree/SpecInferTree.py", "SpecInferTree"),
        "function",
        "iid",
        False,
    ),
    PublicVerifier(
        "opt-tree", "Jikai0Wang/OPT-Tree", "verify of the classic form", _opt_tree, "function", "top_k", False
    ),
)
