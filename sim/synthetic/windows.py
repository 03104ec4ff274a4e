"""Jacobi windows on table models, with the same decoding loops as the engines; the target drafts for itself."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from underpaint.algos.accept import RULES
from underpaint.algos.arrays import IntArray
from underpaint.algos.batched.sparse_table import SparseTable, over_rows
from underpaint.algos.chance import sampling
from underpaint.algos.coupling import noise_of
from underpaint.algos.protocols import Rule
from underpaint.algos.spatial.jacobi import jacobi_decode
from underpaint.algos.spatial.jacobi_front import JacobiFronts, jacobi_fronts
from underpaint.algos.spatial.jacobi_window import JacobiWindow, drawn_for
from underpaint.sim.batched.decoding import MOST_NODES, make_rule
from underpaint.sim.report.statistics import Runs
from underpaint.sim.synthetic.table_model import TableGridTarget, TableModel, TableTarget

WINDOW: Final = "jacobi"
FRONTS: Final = "jacobi fronts"
LOOPS: Final = (WINDOW, FRONTS)
"""The loops of a recipe: one window in raster order, or a window in every open row."""


@dataclass(frozen=True, slots=True)
class WindowRecipe:
    """A method of the Jacobi family, as in a comparison's record.

    Attributes:
        method: Name of the method.
        loop: One of `LOOPS`.
        settings: Sorted JSON text, so that recipes can be compared and sent.
        rule: Name of the rule; "" if the loop accepts tokens itself.
        rule_settings: Sorted JSON text, like `settings`.
        temperature: 1, or 0 for distributions that are one-hot on their likeliest token.
    """

    method: str
    loop: str
    settings: str
    rule: str = ""
    rule_settings: str = "{}"
    temperature: float = 1.0

    @classmethod
    def of(cls, method: str, recorded: Mapping[str, Any], temperature: float = 1.0) -> "WindowRecipe":
        """Read a recipe from a record; ValueError if it is of another family or the temperature is not 0 or 1."""
        if recorded.get("loop") not in LOOPS:
            raise ValueError(f"'{method}' decodes in no Jacobi window; it is a policy and a rule, or decides cells")
        if temperature not in (0.0, 1.0):
            raise ValueError(f"'{method}': a synthetic model has temperature 0 or 1, got {temperature!r}")
        parts = (json.dumps(recorded.get(name, {}), sort_keys=True) for name in ("settings", "rule_settings"))
        settings, rule_settings = parts
        return cls(method, recorded["loop"], settings, recorded.get("rule", ""), rule_settings, float(temperature))


@dataclass(frozen=True, slots=True, eq=False)
class WindowScheme:
    """A window and its rule for a model.

    Attributes:
        model: The table model, at the recipe's temperature.
        window: The settings of the window, or of the windows of open rows.
        rule: The acceptance rule; None if the loop accepts tokens itself.
        lossless: Whether images have the distribution of `model`.
    """

    model: TableModel
    window: JacobiWindow | JacobiFronts
    rule: Rule | None
    lossless: bool


def make_window_scheme(model: TableModel, recipe: WindowRecipe) -> WindowScheme:
    """Build a recipe's window and rule for a model. Raises ValueError if a setting is out of range or does not fit the
    grid, the rule does not fit the window, or a pass would have more than `MOST_NODES` positions."""
    settings: dict[str, Any] = json.loads(recipe.settings)
    model = model if recipe.temperature else at_zero(model)
    if recipe.loop == FRONTS:
        fronts = JacobiFronts(**settings)
        fronts.check(model.grid)
        _check_nodes(recipe, model.grid.height * (fronts.window + 1))  # a redrawn token is fed again
        return WindowScheme(model, fronts, None, model.grid.height == 1)
    window = JacobiWindow(settings.pop("window"), **settings)
    _check_nodes(recipe, window.nodes)
    spec, rule_settings = RULES[recipe.rule], json.loads(recipe.rule_settings)
    drawn_for(spec, window.coupling, window.candidates)
    rule = make_rule(model, recipe.rule, rule_settings)
    return WindowScheme(model, window, rule, spec.is_lossless(rule_settings) and window.is_exact)


def _check_nodes(recipe: WindowRecipe, nodes: int) -> None:
    if nodes > MOST_NODES:
        raise ValueError(
            f"'{recipe.method}': its passes have up to {nodes} positions, simulated ones at most {MOST_NODES}; set a "
            "smaller window"
        )


def at_zero(model: TableModel) -> TableModel:
    """The model at temperature 0: every target distribution is one-hot on its likeliest token (ties: the first)."""
    best = over_rows(model.target, lambda rows: rows.argmax(axis=1))
    if isinstance(model.target, SparseTable):
        return dataclasses.replace(model, target=SparseTable(best[:, None], np.ones((best.size, 1)), model.vocab_size))
    return dataclasses.replace(model, target=np.eye(model.vocab_size)[best])


class WindowImage(NamedTuple):
    """One decoded image.

    Attributes:
        tokens: [cells] int64.
        passes: Positions of each target pass, 1 for the first one.
        accepted: Accepted draft tokens, over all passes but the first.
        depth: Drafted levels, over all passes but the first; row windows have depth 0.
    """

    tokens: IntArray
    passes: IntArray
    accepted: int
    depth: int


def decode_windows(scheme: WindowScheme, image: int, seed: int) -> WindowImage:
    """Decode image `image` of the model's pool with the scheme's loop: one target pass per cycle, no drafter passes."""
    chance = sampling(seed, image)
    if isinstance(scheme.window, JacobiFronts):
        fronts = jacobi_fronts(TableGridTarget(scheme.model, image), scheme.window, chance)
        passes = np.maximum(np.array(fronts.passes, dtype=np.int64), 1)
        return WindowImage(fronts.tokens, passes, fronts.tokens.size - (passes.size - 1), 0)
    assert scheme.rule is not None
    target = TableTarget(scheme.model, image)
    noise = noise_of(chance) if scheme.window.coupling == "gumbel" else None
    decoded = jacobi_decode(target, scheme.rule, chance, scheme.window, noise)
    drafted = decoded.cycles[1:]
    return WindowImage(
        decoded.tokens,
        np.array(target.passes, dtype=np.int64),
        sum(len(cycle.verdict.path) for cycle in drafted),
        sum(cycle.tree.depth for cycle in drafted),
    )


def run_windows(scheme: WindowScheme, images: int, seed: int, first_image: int = 0) -> Runs:
    """Decode `images` images from number `first_image` on; ValueError unless there is at least one."""
    if images < 1:
        raise ValueError(f"runs: expected at least one image, got {images}")
    done = [decode_windows(scheme, image, seed) for image in range(first_image, first_image + images)]
    none = np.zeros((images, MOST_NODES + 1), dtype=np.int64)
    return Runs(
        cells=scheme.model.grid.cells,
        cycles=np.array([one.passes.size - 1 for one in done]),
        accepted=np.array([one.accepted for one in done]),
        depth=np.array([one.depth for one in done]),
        verify=np.stack([np.bincount(one.passes, minlength=MOST_NODES + 1) for one in done]),
        draft=none,
        chained=none,
    )
