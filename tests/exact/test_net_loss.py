"""`roofline` beside plain decoding: by its own cost curve a picture loses no more than its budget."""

from types import ModuleType

from hypothesis import example, given
from hypothesis import strategies as st

from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.draft import Grid, roofline
from underpaint.algos.spatial import jacobi
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.algos.step import decode
from underpaint.sim.synthetic.models import RandomDistribution, SyntheticDrafter, SyntheticTarget

DRAFT_MS = 0.5
MOST_NODES = 9
WORTHLESS = ((1, 1.0), (MOST_NODES, float(MOST_NODES)))
"""A node costs a plain step: nothing can pay."""


class PassCounter(SyntheticDrafter):
    """Counts passes."""

    passes = 0

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        self.passes += 1
        return super().expand(tokens, parents)


def lost(module: ModuleType, curve: tuple[tuple[int, float], ...], budget: float, seed: int) -> tuple[float, float]:
    """ms that a picture of 80 tokens took beyond plain decoding, and the most that one cycle may have added to them."""
    policy = module.Roofline(curve, DRAFT_MS, least_window=1, siblings=0, loss_budget=budget, max_depth=4)
    target = SyntheticTarget(RandomDistribution(12, seed=seed), Grid(8, 10))
    drafter, rule = PassCounter(RandomDistribution(12, seed=seed + 1)), RULES["point"].make()
    held = jacobi.HeldWindow(JacobiWindow(6), target.grid, 12, "iid", None, likeliest=False)
    verification = jacobi.WindowedCycles(target, jacobi.WindowDrafter(held, drafter), rule, RULES["chain"].make(), {})
    done = decode(target, drafter, policy, rule, sampling(seed), MOST_NODES, verification)
    (_, least), (_, most) = curve
    slope = (most - least) / (MOST_NODES - 1)
    passes_ms = sum(least + slope * (cycle.tree.size - 1) for cycle in done.cycles[1:])
    tokens = done.tokens.size - 1  # the first comes of the prompt's pass
    return passes_ms + DRAFT_MS * drafter.passes - tokens * least, most - 2 * least + 4 * DRAFT_MS


def check_budget(module: ModuleType) -> None:
    """Where no draft can pay, and no trial is cheap."""
    for budget in (0.0, 3.0, 10.0):
        beyond, one_cycle = lost(module, WORTHLESS, budget, 0)
        assert 0 <= beyond <= budget + one_cycle


def test_trials_that_cannot_pay_end_at_the_budget() -> None:
    check_budget(roofline)


@given(
    most=st.sampled_from([1.0, 1.3, 2.0, 4.0, 9.0, 20.0]),
    budget=st.sampled_from([0.0, 2.0, 10.0]),
    seed=st.integers(0, 50),
)
@example(most=20.0, budget=0.0, seed=0)
def test_no_curve_costs_more_than_the_budget(most: float, budget: float, seed: int) -> None:
    beyond, one_cycle = lost(roofline, ((1, 1.0), (MOST_NODES, most)), budget, seed)
    assert beyond <= budget + one_cycle + 1e-9
