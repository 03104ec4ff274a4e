"""Graphs of format 1, whose inputs have other names: cells and biases are shared by all rows, top-p is the host's."""

from collections.abc import Mapping
from typing import Final

_NAMES: Final[Mapping[str, str]] = {
    "external_cond_rows": "conditions",
    "guidance_mix": "mix",
    "inverse_temperature": "sharpness",
    "top_k": "kept",
    "top_k_offset": "lowering",
    "probs": "laws",
    "predicted_features": "predicted",
    "chain_levels": "levels",
    "chain_tokens": "drafted",
    "tree_frontier": "places",
    "tree_uniforms": "uniforms",
    "tree_ranked": "ranked",
    "tree_drawn": "drawn",
    "tree_root_tokens": "root_tokens",
    "tree_root_probs": "root_masses",
    "tree_next_frontier": "next_places",
    "tree_tokens": "below_tokens",
    "tree_token_probs": "below_masses",
    "tree_probs": "below_laws",
}
UNSEEN: Final = "unseen"
"""[B] int64: how many of the first slots of the cache a row does not see."""


def graph_names(shared_rows: bool) -> Mapping[str, str]:
    """Names in a graph of format 1 of what format 2 calls otherwise; `shared_rows`: whether it is one."""
    return _NAMES if shared_rows else {}


def known_names(inputs: frozenset[str], shared_rows: bool) -> frozenset[str]:
    """The inputs of a graph under the names of format 2."""
    back = {old: new for new, old in graph_names(shared_rows).items()}
    return frozenset(back.get(name, name) for name in inputs)
