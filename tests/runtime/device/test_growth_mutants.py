"""Wrong searches and wrong orders of candidates are seen: each stands in the place of a function of the kernels."""

from contextlib import ExitStack
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest

from tests.runtime.device.grown import MAX_NODES, MOST_LEVELS, by_device, by_host
from underpaint.algos.draft import POLICIES
from underpaint.runtime.device.kernels import growth, likeliest, opt_tree
from underpaint.runtime.device.launch import kernel, tl

VOCAB = 23
POLICY_SETTINGS = {
    "opt": {"total_tokens": 3, "threshold": 0.0, "max_depth": 3},
    "eagle2": {"depth": 3, "top_k": 3, "total_tokens": 3},
}
"""Rows have more tokens than a search has places, and levels more candidates."""


def trees_agree(policy: str, **changed: int) -> bool:
    """Three images, two cycles, six seeds: rows have one token, a few or many, of one or of two weights."""
    draft_policy = POLICIES[policy].make(**POLICY_SETTINGS[policy] | changed)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        places = rng.permuted(np.tile(np.arange(VOCAB), (5, 1)), axis=1)
        weights = (places < [[1], [2], [6], [12], [12]]) * rng.integers(1, 2 + seed % 2, size=(5, VOCAB))
        rows = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
        room = rng.integers(1, MOST_LEVELS + 1, size=(2, 3)).tolist()
        roots, uniforms = rng.integers(0, 7, size=3).tolist(), rng.random((3, MAX_NODES))
        trees = by_device(draft_policy, rows, room, roots, uniforms)
        if trees != [by_host(draft_policy, rows, *of) for of in zip(room[1], roots, uniforms, strict=True)]:
            return False
    return True


@kernel
def by_pairs(keys, least, K, MOST: tl.constexpr, STEP: tl.constexpr):
    """The search by comparing all pairs of keys."""
    place = tl.arange(0, keys.shape[0])
    ahead = (keys[None, :] > keys[:, None]) | ((keys[None, :] == keys[:, None]) & (place[None, :] < place[:, None]))
    mask = (keys >= least) & (tl.sum(ahead.to(tl.int32), axis=1) < MOST)
    run = tl.cumsum(mask.to(tl.int32), axis=0)
    return mask, run - 1, tl.sum(mask.to(tl.int32), axis=0), least


@kernel
def last_of_equals(keys, least, K, MOST: tl.constexpr, STEP: tl.constexpr):
    """Of equal keys it takes the last."""
    place = tl.arange(0, keys.shape[0])
    ahead = (keys[None, :] > keys[:, None]) | ((keys[None, :] == keys[:, None]) & (place[None, :] > place[:, None]))
    mask = (keys >= least) & (tl.sum(ahead.to(tl.int32), axis=1) < MOST)
    run = tl.cumsum(mask.to(tl.int32), axis=0)
    return mask, run - 1, tl.sum(mask.to(tl.int32), axis=0), least


@kernel
def no_equals(keys, least, K, MOST: tl.constexpr, STEP: tl.constexpr):
    """It takes none of the keys that there is no room for all of."""
    reached = tl.sum((keys[None, :] >= keys[:, None]).to(tl.int32), axis=1)
    mask = (keys >= least) & (reached <= MOST)
    run = tl.cumsum(mask.to(tl.int32), axis=0)
    return mask, run - 1, tl.sum(mask.to(tl.int32), axis=0), least


@kernel
def one_too_few(keys, least, K, MOST: tl.constexpr, STEP: tl.constexpr):
    """It finds one key less than it was asked for."""
    place = tl.arange(0, keys.shape[0])
    ahead = (keys[None, :] > keys[:, None]) | ((keys[None, :] == keys[:, None]) & (place[None, :] < place[:, None]))
    mask = (keys >= least) & (tl.sum(ahead.to(tl.int32), axis=1) < K - 1)
    run = tl.cumsum(mask.to(tl.int32), axis=0)
    return mask, run - 1, tl.sum(mask.to(tl.int32), axis=0), least


@kernel
def too_few(keys, least, K, MOST: tl.constexpr, STEP: tl.constexpr):
    """It finds less than half of the keys that it was asked for."""
    return one_too_few(keys, least, K // 2, MOST, STEP)


@kernel
def higher_first(share, token):
    """Of equal tokens the higher is packed as the larger; see `higher`."""
    bits = share.to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(bits >= 0x00800000, (bits << 32) | token.to(tl.int64), -1)


@kernel
def higher(packed):
    """The token of `higher_first`."""
    return packed & 0x7FFFFFFF


@kernel
def without_path(packed, above):
    """A score that leaves the path out."""
    prob = (packed >> 32).to(tl.int32).to(tl.float32, bitcast=True).to(tl.float64)
    return tl.where(packed >= 0, tl.where(above > 0.0, prob, 0.0), 0.0)


USERS = {"opt": opt_tree, "eagle2": growth}
ROWS, CANDIDATES = "of a row", "of a level"
WRONG = {
    "equal children: the last are found": (ROWS, {"few_largest": last_of_equals}),
    "equal children: those without room for all are dropped": (ROWS, {"few_largest": no_equals}),
    "children: one is missing": (ROWS, {"few_largest": one_too_few}),
    "equal children: the higher token comes first": (ROWS, {"pack": higher_first, "token_of": higher}),
    "equal candidates: the last are kept": (CANDIDATES, {"few_largest": last_of_equals}),
    "equal candidates: those without room for all are dropped": (CANDIDATES, {"few_largest": no_equals}),
    "candidates: one is missing": (CANDIDATES, {"few_largest": one_too_few}),
    "candidates: more than half are missing": (CANDIDATES, {"few_largest": too_few}),
    "candidates: their paths are left out": (CANDIDATES, {"score_of": without_path}),
}

UNSEEN = {("opt", "candidates: one is missing"), ("opt", "equal children: the higher token comes first")}
"""OPT-Tree asks for as many as it drafts, and never keeps that many new ones: their parents are kept too. Its ties are
settled by what a candidate is called, see `test_mutants`."""


@pytest.mark.parametrize(("policy", "name"), [case for case in product(USERS, WRONG) if case not in UNSEEN])
def test_a_wrong_function_is_seen(policy: str, name: str) -> None:
    place, functions = WRONG[name]
    assert not agrees_with(policy, place, functions)


@pytest.mark.parametrize("policy", USERS)
def test_trees_agree_by_either_search(policy: str) -> None:
    assert trees_agree(policy)
    for place in (ROWS, CANDIDATES):
        assert agrees_with(policy, place, {"few_largest": by_pairs})


def agrees_with(policy: str, place: str, functions: dict[str, object]) -> bool:
    """Whether trees agree with `functions` in the place of those of a row's search, or of a level's."""
    with ExitStack() as stack:
        for name, function in functions.items():
            module = USERS[policy] if place == CANDIDATES or name == "token_of" else likeliest
            stack.enter_context(patch.object(module, name, function))
        # A level of OPT-Tree is searched where the rows of a few nodes have more tokens than are drafted.
        return trees_agree(policy, **({"total_tokens": 5} if (policy, place) == ("opt", CANDIDATES) else {}))
