"""Random trees for `benchmarks.device`: a rule's verdict on the device beside the reference's."""

from typing import Any

import numpy as np

from underpaint.algos.accept import RULES
from underpaint.algos.chance import Role, from_arrays
from underpaint.algos.tree import DraftTree, Drawn


def random_tree(drawn: Drawn, chain: bool, nodes: int, vocab_size: int, seed: int) -> tuple[DraftTree, np.ndarray]:
    """Return a tree with up to four children per node, and target distributions [N, V] close to the drafter's."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((nodes, vocab_size))
    draft, target = (np.exp(logits + 0.5 * rng.standard_normal(logits.shape)) for _ in range(2))
    draft, target = draft / draft.sum(1, keepdims=True), target / target.sum(1, keepdims=True)
    tokens, parents, child_tokens = [0], [-1], dict[int, list[int]]()
    while len(tokens) < nodes:
        parent = len(tokens) - 1 if chain else (len(tokens) - 1) // 4
        before = child_tokens.setdefault(parent, [])
        if drawn == "top_k":
            token = int(np.argsort(-draft[parent], kind="stable")[len(before)])
        else:
            weights = draft[parent].copy()
            if drawn == "without_replacement":
                weights[before] = 0.0
            token = int(rng.choice(vocab_size, p=weights / weights.sum()))
        before.append(token)
        tokens.append(token)
        parents.append(parent)
    rows = np.arange(nodes, dtype=np.int64)
    tree = DraftTree(np.array(tokens), np.array(parents), drawn, draft.astype(np.float32), rows)
    return tree, target.astype(np.float32)


def agrees(name: str, device: Any, nodes: int, vocab_size: int, seed: int) -> bool:
    """Return whether a rule decides like the reference on one tree of each kind that it covers."""
    import torch

    from underpaint.runtime.device.kernels.tree_meta import TreePlaces, tree_meta
    from underpaint.runtime.device.kernels.walk import BatchTree, Shape, Verdicts
    from underpaint.runtime.device.rules import device_rule

    spec = RULES[name]
    settings = {}
    if spec.codebook:
        settings["neighbours"] = (np.arange(vocab_size)[:, None] + np.arange(1, 21)) % vocab_size
        settings["k"] = 10
    if spec.embeddings:
        settings["codebook"] = np.random.default_rng(seed).standard_normal((vocab_size, 8))
    rule = spec.make(**settings)
    for drawn in sorted(spec.drawn):
        tree, probs = random_tree(
            drawn, spec.needs_chain, min(nodes, 6) if spec.needs_chain else nodes, vocab_size, seed
        )
        size = tree.size
        uniforms = np.random.default_rng(seed + 1).random((4, size))
        expected = rule(tree, probs, from_arrays({role: uniforms[int(role)] for role in tuple(Role)[:4]}))

        def to_device(array: np.ndarray) -> Any:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)[None]

        parents, counts = to_device(tree.parents), torch.tensor([size], device=device)
        positions, depths, first, sibling, masks = (torch.zeros_like(parents) for _ in range(5))
        batch_tree = BatchTree(
            to_device(tree.tokens),
            first,
            sibling,
            masks,
            parents,
            counts,
            to_device(probs),
            to_device(tree.draft_probs),
            to_device(tree.draft_rows),
            to_device(uniforms),
        )
        layout = TreePlaces(torch.ones_like(counts), positions, depths)
        tree_meta(batch_tree, layout, max(1, tree.depth), size)
        zeros = torch.zeros(3, 1, dtype=torch.int64, device=device)
        finite = torch.ones(1, size, dtype=torch.int32, device=device)
        out = Verdicts(torch.zeros_like(parents), zeros[0], zeros[1], zeros[2], finite)
        children = 1 if spec.needs_chain else 4
        shape = Shape(1, size, vocab_size, drawn, max(1, tree.depth), children)
        device_rule(rule, shape, device)(batch_tree, depths, out)
        path = out.path[0].tolist()[: int(out.taken[0]) - 1]
        if int(out.status[0]) or (tuple(path), int(out.token[0])) != (tuple(expected.path), expected.token):
            return False
    return True
