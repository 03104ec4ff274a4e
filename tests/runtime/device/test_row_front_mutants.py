"""Planted bugs in the kernels of row fronts that differ from image to image are seen by small decodes."""

import numpy as np
import pytest

from tests.runtime.device.row_fronts import Given, adaptive, given_decodes_agree, jacobi
from tests.runtime.device.test_mutants import planted
from underpaint.algos.protocols import Grid

ROWS = np.array([[4, 2, 1, 1], [1, 2, 4, 1], [2, 1, 1, 4], [1, 5, 1, 1]], dtype=np.float32) / 8
GIVEN = Given(ROWS, (0.11, 0.93, 0.52, 0.34, 0.71, 0.05, 0.83))
ADAPTIVE, LEFT, TOP = adaptive(2), jacobi(2, 2, "left", "all"), jacobi(2, 3, "uniform", "top")
METHODS = {"adaptive": ADAPTIVE, "left": LEFT, "top": TOP}

MUTANTS = {
    "a proxy holds what the row above had when it first could": (
        "adaptive",
        ("adaptive_fronts", "(opened - 1) * W + above - 1", "(opened - 1) * W + w - 1"),
    ),
    "a row opens a step early": ("adaptive", ("adaptive_fronts", "(above >= w)", "(above >= w - 1)")),
    "every image is tested by the first one's noise": (
        "adaptive",
        ("adaptive_fronts", "tl.load(rows.uniforms + image * 2), chance", "tl.load(rows.uniforms), chance"),
    ),
    "a test is at the address of another": (
        "adaptive",
        ("adaptive_fronts", "2 * (opened * W * H * W + lacking)", "2 * (opened * W * H * W + lacking + 1)"),
    ),
    "what is held back is tested against its first distribution": (
        "adaptive",
        ("adaptive_fronts", "copy_row(row, offer, V, BLOCK)", "copy_row(offer, offer, V, BLOCK)"),
    ),
    "a token that was drawn anew is not tested": (
        "adaptive",
        ("adaptive_fronts", "kept = (lacking == 0) | (redrawn == V)", "kept = (lacking >= 0) | (redrawn == V)"),
    ),
    "what is rejected is drawn anew from the whole distribution": (
        "adaptive",
        ("row_maths", "excess.to(tl.float64) - offer", "excess.to(tl.float64) - 0.0 * offer"),
    ),
    "a row drafts before the row above has its lead": (
        "left",
        ("row_drafts", "(above >= lead)", "(above >= lead - 1)"),
    ),
    "drafts of other rows are seen": (
        "left",
        ("row_drafts", "(group[None, :] == group[:, None])", "(group[:, None] >= 0)"),
    ),
    "a row that opens copies another token than the last decided": (
        "left",
        (
            "row_drafts",
            "tl.load(drafts.columns + image * H + behind, known, other=0) - 1",
            "tl.where(row > 0, W, count) - 1",
        ),
    ),
    "keys of rows that wait are forgotten": (
        "top",
        ("row_drafts", "idle = there & (reached > 0)", "idle = there & (reached < 0)"),
    ),
    "keys of rejected drafts are kept": ("left", ("row_verdicts", "kept & fed)", "drafted & fed)")),
    "drafts behind a rejected one stay": (
        "left",
        ("row_verdicts", "refused = same & (lane[None, :] < lane[:, None])", "refused = same & (lane[None, :] < 0)"),
    ),
    "every row draws its rejected token anew": ("top", ("row_verdicts", "tl.where(every == 1, H, top)", "H")),
    "drafts are judged by the distribution before the last": (
        "left",
        ("row_verdicts", "copy_row(row, offer, V, BLOCK)", "copy_row(offer, offer, V, BLOCK)"),
    ),
    "every image is judged by the first one's noise": (
        "left",
        ("row_verdicts", "drafts.uniforms + (image * ROLES + 1) * W", "drafts.uniforms + W"),
    ),
}


def agrees(name: str) -> bool:
    return given_decodes_agree(METHODS[name], Grid(3, 4), GIVEN, (0, 2))


@pytest.mark.parametrize("name", METHODS)
def test_what_the_mutants_change_agrees_as_it_is(name: str) -> None:
    assert agrees(name)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_seen(name: str) -> None:
    method, change = MUTANTS[name]
    with planted(*change):
        assert not agrees(method)
