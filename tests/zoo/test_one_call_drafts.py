"""How far drafts in one call lie from drafts level by level, and why: the drafter's products round to 8 bits."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import underpaint
from underpaint.algos.chance import sampling
from underpaint.algos.draft import Budget
from underpaint.algos.draft.eagle1 import Eagle1
from underpaint.algos.tree import Verdict
from underpaint.zoo.load import FOLDER

CYCLES = 32
FLOAT32 = 1
"""MatMulNBits' accuracy level of products in float32; the shipped drafters have that of 8 bits."""


class LevelByLevel:
    """A drafter that grows no tree in one call."""

    fuses_trees = fuses_chains = False

    def __init__(self, drafter: Any) -> None:
        self.drafter, self.vocab_size = drafter, drafter.vocab_size

    def expand(self, *given: Any) -> Any:
        return self.drafter.expand(*given)


def drafts(pipeline: Any, one_call: bool) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """Tokens and draft distributions of every cycle of a picture whose tokens are the target's own."""
    condition, rng = pipeline.condition("a woolly fox left of an outlined pumpkin"), np.random.default_rng(1)
    target = pipeline.target(condition, pipeline.sampling).model
    drafter = pipeline.drafter(pipeline.sampling).model
    scored = target.begin()
    drafter.begin(scored)
    policy = Eagle1((2, 2, 1, 1))
    policy.begin(pipeline.grid)
    root = _drawn(scored.probs[-1], rng)
    for cycle in range(CYCLES):
        grower = drafter if one_call else LevelByLevel(drafter)
        tree = policy.grow(grower, root, Budget(8, 13), sampling(1).cycle(cycle))
        yield tree.tokens.copy(), [tree.draft_probs[place].copy() for place in tree.draft_rows if place >= 0]
        scored = target.score(tree)
        root = _drawn(scored.probs[0], rng)
        target.commit(tree, Verdict((), root))
        drafter.commit(tree, Verdict((), root), scored)


def _drawn(row: np.ndarray, rng: np.random.Generator) -> int:
    weights = row.astype(np.float64)
    return int(rng.choice(weights.size, p=weights / weights.sum()))


def furthest(pipeline: Any) -> tuple[float, float]:
    """The largest total variation at roots, and behind equal tokens at any node."""
    roots, nodes = [0.0], [0.0]
    at_once, by_level = list(drafts(pipeline, True)), list(drafts(pipeline, False))
    for (tokens, rows), (other, others) in zip(at_once, by_level, strict=True):
        for node, (one, two) in enumerate(zip(rows, others, strict=True)):
            if not np.array_equal(tokens[: node + 1], other[: node + 1]):
                break
            apart = 0.5 * float(np.abs(one.astype(np.float64) - two).sum())
            (nodes if node else roots).append(apart)
    return max(roots), max(nodes)


def test_one_call_drafts_lie_within_a_step_of_8_bits_of_those_level_by_level() -> None:
    roots, nodes = furthest(underpaint.open_pipeline(resolution=64))
    assert roots == 0.0
    assert nodes <= 0.03


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
        held, digest = json.loads(manifest), hashlib.sha256(content).hexdigest()
        manifest = manifest.replace(held["sha256"], digest).replace(
            f'"bytes": {held["bytes"]}', f'"bytes": {len(content)}'
        )
        (folder / f"{name}.json").write_text(manifest)
        index = index.replace(held["sha256"], digest)
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


def test_with_products_in_float32_rounding_alone_is_left(float32_products: Path) -> None:
    roots, nodes = furthest(underpaint.open_pipeline(float32_products, resolution=64))
    assert roots == 0.0
    assert nodes <= 1e-5
