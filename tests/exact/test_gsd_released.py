"""GSD with `window="released"` accepts every token with the probability that the released code does.

The expected values come from the authors' own `SpeculativeSampler.__call__` (github.com/junhyukso/GSD,
scheduler/jacobi_iteration_lumina_mgpt.py), run in float64 on the integers below. Each is the largest uniform that still
accepts the token, by bisection. The codes stood in for the language model's embeddings. On 240 random cases of 16 to 40
tokens without ties every acceptance was equal. So it was on 240 with ties, once the code's sort was told to be stable;
without that, PyTorch leaves the order of equal probabilities open.
"""

from typing import NamedTuple

import numpy as np
import pytest

from tests.acceptance import accepted_mass
from underpaint.algos.accept.gsd import GroupedAcceptance


class Released(NamedTuple):
    """One node of the released code. target, draft: weights [18]; tenths: codes [18] in tenths; accepted: [18]."""

    target: tuple[int, ...]
    draft: tuple[int, ...]
    tenths: tuple[int, ...]
    accepted: tuple[float, ...]


RELEASED = {
    "every token possible": Released(
        (59, 37, 50, 57, 12, 31, 40, 28, 8, 15, 41, 3, 48, 27, 1, 16, 47, 46),
        (8, 38, 27, 35, 8, 29, 15, 20, 1, 25, 33, 26, 7, 21, 11, 38, 35, 8),
        (8, 15, 13, 11, 10, 0, 11, 7, 1, 3, 8, 11, 8, 9, 13, 10, 5, 10),
        (
            *(1.0, 1.0, 1.0, 1.0, 1.0, 0.79770318, 1.0, 0.79358068, 1.0),
            *(0.40812721, 1.0, 0.078486, 1.0, 0.8745583, 0.06183746, 0.28640506, 1.0, 1.0),
        ),
    ),
    "five tokens of probability zero": Released(
        (29, 32, 20, 9, 0, 0, 0, 47, 18, 34, 0, 23, 3, 0, 22, 13, 24, 6),
        (37, 24, 36, 38, 23, 11, 6, 22, 8, 30, 37, 10, 22, 2, 8, 15, 35, 38),
        (10, 9, 9, 0, 6, 15, 6, 3, 3, 11, 0, 15, 14, 9, 7, 12, 8, 7),
        (
            *(1.0, 1.0, 1.0, 0.49977396, 0.0, 0.0, 0.0, 1.0, 0.85395645),
            *(1.0, 0.0, 1.0, 0.19577922, 0.0, 1.0, 0.91363636, 1.0, 0.22669173),
        ),
    ),
}


@pytest.mark.parametrize("case", RELEASED)
def test_every_token_is_accepted_as_the_released_code_accepts_it(case: str) -> None:
    released = RELEASED[case]
    target, draft = (np.array(weights) / sum(weights) for weights in (released.target, released.draft))
    codes = np.array(released.tenths)[:, None] / 10
    rule = GroupedAcceptance(codes, group=14, gap=0.15, distance=0.5**0.5, window="released", residual="paper")
    by_token = [min(1.0, np.divide(*rule.odds(target, draft, token, 0))) for token in range(target.size)]
    assert np.allclose(by_token, released.accepted, atol=1e-8)
    assert np.allclose(accepted_mass(rule, target, draft), draft * np.array(released.accepted), atol=1e-8)


def test_the_window_holds_seven_less_likely_tokens_and_six_likelier_ones() -> None:
    """A window that would begin before the least likely token is empty, and the code falls back on SJD's min(1, p / q).

    So the seven least likely tokens are judged alone. No token is refused for its rank.
    """
    rising, draft = np.arange(1.0, 17.0) / 136.0, np.full(16, 1 / 16)
    rule = GroupedAcceptance(np.zeros((16, 1)), 14, 1.0, 1.0, "released", "paper")
    assert rule.members(rising, 8).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert [rule.members(rising, token).size for token in range(16)] == [*[1] * 7, *[14] * 3, 13, 12, 11, 10, 9, 8]
    acceptance = accepted_mass(rule, rising, draft) * 16
    assert np.allclose(acceptance[:7], rising[:7] * 16)
    assert np.all(acceptance[9:] == 1.0)
