"""Checks of policy settings: their bounds, and whether the engine can score the resulting trees."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from underpaint.algos.draft.shape import ranked_shape

MOST: Final = 1e9
"""Upper bound of all policy settings; levels, nodes and milliseconds stay far below it."""


def at_least(policy: str, least: float, **settings: float) -> None:
    """Raise ValueError, with the setting and the bounds, unless each setting is from `least` to `MOST`."""
    for name, value in settings.items():
        if not value >= least:
            raise ValueError(f"policy '{policy}': {name} must be at least {least}, got {value!r}")
        if value > MOST:
            raise ValueError(f"policy '{policy}': {name} must be at most {MOST:g}, got {value!r}")


_NODES: Final = ("total_tokens",)
_LEVELS: Final = ("depth", "length", "start_depth", "max_depth", "min_depth", "mean_depth")
_CHILDREN: Final = ("top_k", "start_width", "max_width", "min_width")
"""Names of settings that limit a tree's drafted nodes, its levels, and the children of a node. User-defined policies
with these names are checked too."""


def check_limits(settings: Mapping[str, Any], max_nodes: int, vocab_size: int) -> None:
    """Check that no policy setting exceeds the engine or the vocabulary.

    Args:
        settings: The settings of the policy, by name.
        max_nodes: Nodes of the largest tree that the target can score, including the root.
        vocab_size: The vocabulary size V.

    Raises:
        ValueError: A setting is too large; the message has the largest possible value.
    """
    drafted = max_nodes - 1
    scored = f"the engine scores {max_nodes} nodes, the root included"
    few = f"siblings are different codes, of which there are {vocab_size}"
    for names, most, why in (
        (_NODES + _LEVELS, drafted, scored),
        (_CHILDREN, *min((drafted, scored), (vocab_size, few))),
    ):
        for name in names:
            value = settings.get(name)
            if isinstance(value, int | float) and value > most:
                raise ValueError(f"setting {name}: expected at most {most}, got {value}: {why}")
    widths = tuple(settings.get("widths", ()))
    if sum(widths) > drafted:
        raise ValueError(f"setting widths: expected at most {drafted} nodes in all levels, got {sum(widths)}: {scored}")
    shape = ranked_shape(widths)
    node, children = max(Counter(shape[1:]).items(), key=lambda item: item[1], default=(0, 0))
    if children > vocab_size:
        level = 1
        while node:
            node, level = shape[node], level + 1
        raise ValueError(
            f"setting widths: expected at most {vocab_size} children of a node, got {children} in level {level} of "
            f"{','.join(map(str, widths))}: {few}"
        )
