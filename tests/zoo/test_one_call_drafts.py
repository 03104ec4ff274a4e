"""How far drafts in one call lie from drafts level by level, and why: the drafter's products round to 8 bits."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import underpaint
from underpaint.algos.chance import sampling
from underpaint.algos.draft.eagle1 import Eagle1
from underpaint.algos.draft.tree_builder import likeliest_chain
from underpaint.algos.protocols import Budget
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.zoo.load import FOLDER

CYCLES = 40
WIDTHS = (4, 4, 3, 2)
FLOAT32 = 1
"""MatMulNBits' accuracy level of products in float32; the shipped drafters have that of 8 bits."""
EIGHT_BITS_APART, FLOAT32_APART = 0.03, 1e-5
"""The most total variation between the two ways of drafting, by how products round."""

Grow = Callable[[Any, int, int], DraftTree]


class LevelByLevel:
    """A drafter that drafts nothing in one call, and keeps the distributions behind each path."""

    fuses_trees = fuses_chains = False

    def __init__(self, drafter: Any) -> None:
        self.drafter, self.vocab_size = drafter, drafter.vocab_size
        self._paths: list[tuple[int, ...]] = []
        self.distributions: dict[tuple[int, ...], np.ndarray] = {}

    def expand(self, tokens: np.ndarray, parents: np.ndarray) -> np.ndarray:
        distributions: np.ndarray = self.drafter.expand(tokens, parents)
        paths = [
            (*(self._paths[above] if above >= 0 else ()), token)
            for token, above in zip(tokens.tolist(), parents.tolist(), strict=True)
        ]
        self._paths += paths
        self.distributions |= zip(paths, distributions.copy(), strict=True)
        return distributions


def opened(folder: Path) -> list[underpaint.Pipeline]:
    """Two pipelines of one folder: drafters of one share an engine."""
    return [underpaint.open_pipeline(folder, resolution=64) for _ in range(2)]


def both(pipelines: list[underpaint.Pipeline], grow: Grow) -> Iterator[tuple[DraftTree, DraftTree, LevelByLevel]]:
    """Cycle by cycle of one picture of the target's own tokens: a tree of one call, and of levels, from one state."""
    first, rng = pipelines[0], np.random.default_rng(1)
    condition = first.condition("an outlined pumpkin left of a woolly fox")
    target = first.target(condition, first.sampling).model
    drafters: list[Any] = [each.drafter(each.sampling).model for each in pipelines]
    assert drafters[0].fuses_trees
    assert drafters[0].fuses_chains
    scored = target.begin()
    for drafter in drafters:
        drafter.begin(scored)
    root = _drawn(scored.probs[-1], rng)
    for cycle in range(CYCLES):
        levels = LevelByLevel(drafters[1])
        tree = grow(drafters[0], root, cycle)
        yield tree, grow(levels, root, cycle), levels
        scored = target.score(tree)
        root = _drawn(scored.probs[0], rng)
        verdict = Verdict((), root)
        target.commit(tree, verdict)
        for drafter in drafters:
            drafter.commit(tree, verdict, scored)


def _drawn(row: np.ndarray, rng: np.random.Generator) -> int:
    weights = row.astype(np.float64)
    return int(rng.choice(weights.size, p=weights / weights.sum()))


def static_tree(drafter: Any, root: int, cycle: int) -> DraftTree:
    return Eagle1(WIDTHS).grow(drafter, root, Budget(8, 20), sampling(1).cycle(cycle))


def chain(drafter: Any, root: int, cycle: int) -> DraftTree:
    return likeliest_chain(drafter, root, len(WIDTHS))


def path(tree: DraftTree, node: int) -> tuple[int, ...]:
    return tuple(tree.tokens[[0, *tree.path_to(node)]].tolist())


def distances(pipelines: list[underpaint.Pipeline]) -> list[float]:
    """Total variation between the two ways, of every distribution behind the same tokens of a static tree."""
    variations = []
    for tree, _, levels in both(pipelines, static_tree):
        for node, row in enumerate(tree.draft_rows.tolist()):
            other = levels.distributions.get(path(tree, node))
            if row >= 0 and other is not None:
                variations.append(0.5 * float(np.abs(tree.draft_probs[row].astype(np.float64) - other).sum()))
    assert len(variations) > 2 * CYCLES  # roots and more
    return variations


def lost_by_chains(pipelines: list[underpaint.Pipeline]) -> float:
    """By how much, at most, a token of a one-call chain is less likely than the likeliest one, level by level."""
    lost = [0.0]
    for tree, _, levels in both(pipelines, chain):
        for node in range(1, tree.size):
            row = levels.distributions.get(path(tree, node)[:-1])
            if row is None:  # behind a token that the other chain has not
                break
            lost.append(float(row.max() - row[tree.tokens[node]]))
    return max(lost)


def test_one_call_drafts_lie_within_a_step_of_8_bits_of_those_level_by_level() -> None:
    pipelines = opened(FOLDER)
    variations = distances(pipelines)
    assert max(variations) <= EIGHT_BITS_APART
    assert np.median(variations) <= FLOAT32_APART  # most are the same 8 bits
    assert lost_by_chains(pipelines) <= 2 * EIGHT_BITS_APART


def test_with_products_in_float32_rounding_alone_is_left(float32_products: Path) -> None:
    pipelines = opened(float32_products)
    assert max(distances(pipelines)) <= FLOAT32_APART
    assert lost_by_chains(pipelines) <= 2 * FLOAT32_APART


@pytest.fixture
def float32_products(tmp_path: Path) -> Path:
    """The shipped folder, its drafters' products in float32."""
    folder = tmp_path / "zoo"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    index = (folder / "model_index.json").read_text()
    for name in ("drafter64", "drafter128"):
        graph = onnx.load(folder / f"{name}.onnx", load_external_data=False)
        assert _set_accuracy(graph.graph) > 0
        content = graph.SerializeToString()
        (folder / f"{name}.onnx").write_bytes(content)
        manifest = (folder / f"{name}.json").read_text()
        record, digest = json.loads(manifest), hashlib.sha256(content).hexdigest()
        manifest = manifest.replace(record["sha256"], digest).replace(
            f'"bytes": {record["bytes"]}', f'"bytes": {len(content)}'
        )
        (folder / f"{name}.json").write_text(manifest)
        index = index.replace(record["sha256"], digest)
    (folder / "model_index.json").write_text(index)
    return folder


def _set_accuracy(graph: Any) -> int:
    count = 0
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                count += _set_accuracy(attribute.g)
            elif node.op_type == "MatMulNBits" and attribute.name == "accuracy_level":
                attribute.i, count = FLOAT32, count + 1
    return count
