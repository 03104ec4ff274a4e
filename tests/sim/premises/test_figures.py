"""The premises of a model whose distributions are known, and what a code is compared with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.chance import sampling
from underpaint.algos.protocols import Grid
from underpaint.sim.premises.figures import PremiseRecorder, Premises, matched_codes
from underpaint.sim.synthetic.models import Blend, RandomDistribution, SyntheticDrafter, SyntheticTarget

VOCAB, GRID = 12, Grid(4, 4)
CODEBOOK = np.random.default_rng(1).standard_normal((VOCAB, 3))
NEIGHBOURS = nearest_codes(CODEBOOK, 4)


def recorded(blend: float = 0.3, depths: int = 2, images: int = 3, drafted: bool = True) -> Premises:
    recorder = PremiseRecorder(NEIGHBOURS, depths, nearest=3)
    for number in range(images):
        world = RandomDistribution(VOCAB, seed=number, sharpness=2.0)
        drafter = SyntheticDrafter(Blend(world, RandomDistribution(VOCAB, seed=99), blend)) if drafted else None
        recorder.add(SyntheticTarget(world, GRID), drafter, sampling(0, number))
    return recorder.premises()


def held(cells: int, **changed: object) -> Premises:
    """Premises of two images of hand-made figures."""
    flat = np.full((2, cells), 0.5)
    values: dict[str, object] = {
        "grid": Grid(2, cells // 2),
        "vocab_size": 8,
        "nearest": 2,
        **dict.fromkeys(("top_probability", "entropy", "near_mass", "control_mass"), flat),
        **dict.fromkeys(("acceptance", "draft_top", "draft_entropy"), np.full((2, 1, cells), 0.5)),
        "agreement": np.ones((2, 1, cells), dtype=np.bool_),
        "regions": None,
        **changed,
    }
    return Premises(**values)  # type: ignore[arg-type]


def test_figures_are_those_of_the_distributions():
    premises = recorded()
    recorder_target = RandomDistribution(VOCAB, seed=0, sharpness=2.0)
    target = SyntheticTarget(recorder_target, GRID)
    first = target.begin().probs[0]
    assert premises.top_probability[0, 0] == pytest.approx(first.max(), abs=1e-6)
    nats = -(first[first > 0] * np.log(first[first > 0])).sum()
    assert premises.entropy[0, 0] == pytest.approx(nats, abs=1e-5)
    assert premises.mean_top().value == pytest.approx(premises.top_probability.mean())
    assert premises.perplexity().value == pytest.approx(np.exp(premises.entropy.mean()))
    assert premises.acceptance.shape == (3, 2, 16)
    low, high = premises.mean_top().low, premises.mean_top().high
    assert low is not None
    assert high is not None
    assert low <= premises.mean_top().value <= high


def test_a_drafter_that_is_the_target_agrees_and_overlaps_everywhere():
    premises = recorded(blend=0.0)
    for depth in range(2):
        assert premises.acceptance_at(depth).value == pytest.approx(1.0)
        assert premises.agreement_at(depth).value == 1.0
        assert premises.draft_top_at(depth).value == pytest.approx(
            premises.top_probability[:, depth + 1 :].mean(), abs=1e-6
        )
        assert premises.draft_entropy_at(depth).value == pytest.approx(
            premises.entropy[:, depth + 1 :].mean(), abs=1e-5
        )
    assert recorded(blend=0.9).acceptance_at(0).value < 0.9


def test_cells_that_no_draft_reaches_are_left_out():
    acceptance = np.full((2, 2, 8), 0.5)
    acceptance[:, 0, 0] = acceptance[:, 1, :2] = 99.0
    seen = dict.fromkeys(("acceptance", "draft_top", "draft_entropy"), acceptance)
    premises = held(8, agreement=np.ones((2, 2, 8), np.bool_), **seen)
    for statistic in (premises.acceptance_at, premises.draft_top_at, premises.draft_entropy_at):
        assert [statistic(depth).value for depth in (0, 1)] == [0.5, 0.5]


def test_without_a_drafter_the_targets_figures_are_the_same_and_nothing_is_said_of_drafts():
    alone, both = recorded(drafted=False), recorded()
    np.testing.assert_array_equal(alone.top_probability, both.top_probability)
    np.testing.assert_array_equal(alone.near_mass, both.near_mass)
    assert alone.depths == 0
    assert alone.locality("left") is None


def test_one_image_has_no_interval():
    one = recorded(images=1).mean_top()
    assert (one.low, one.high) == (None, None)


def test_regions_are_told_apart_by_their_cells():
    top = np.array([[0.9, 0.9, 0.3, 0.3], [0.7, 0.7, 0.1, 0.1]])
    regions = np.array([[0, 0, 1, 1], [0, 0, 1, 1]])
    premises = held(4, top_probability=top, regions=regions)
    calm, busy = premises.region_top("calm"), premises.region_top("busy")
    assert calm is not None
    assert busy is not None
    assert premises.region_top("object") is None
    assert (calm.value, busy.value) == (pytest.approx(0.8), pytest.approx(0.2))
    factor = premises.region_factor()
    assert factor is not None
    assert factor.value == pytest.approx(4.0)
    assert (premises.region_share("calm"), premises.region_share("object")) == (0.5, 0.0)
    nats = held(4, entropy=5 * top, regions=regions).region_entropy("busy")
    assert nats is not None
    assert nats.value == pytest.approx(1.0)
    assert held(4).region_factor() is None


def test_locality_sees_rows_and_columns_and_nothing_elsewhere():
    """Acceptance that is one number a column is told by the cell above, and not by the one to the left."""
    rng = np.random.default_rng(5)
    columns = np.repeat(rng.random((40, 1, 8)), 8, axis=1).reshape(40, 1, 64)
    premises = held(64, grid=Grid(8, 8), acceptance=columns, top_probability=np.full((40, 64), 0.5))
    above, left, elsewhere = (premises.locality(side) for side in ("above", "left", "elsewhere"))
    assert above is not None
    assert left is not None
    assert elsewhere is not None
    assert above.value == pytest.approx(1.0)
    assert abs(left.value) < 0.2
    assert abs(elsewhere.value) < 0.2
    turned = columns.reshape(40, 8, 8).transpose(0, 2, 1).reshape(40, 1, 64)
    rows = held(64, grid=Grid(8, 8), acceptance=turned, top_probability=np.full((40, 64), 0.5)).locality("left")
    assert rows is not None
    assert rows.value == pytest.approx(1.0)
    one_row = held(64, grid=Grid(1, 64), acceptance=turned, top_probability=np.full((40, 64), 0.5))
    assert one_row.locality("left") is not None
    assert one_row.locality("above") is None
    one_image = held(64, grid=Grid(8, 8), acceptance=turned[:1], top_probability=np.full((1, 64), 0.5))
    assert one_image.locality("left") is not None
    assert one_image.locality("elsewhere") is None, "the other image would be the same"


@given(
    st.integers(0, 2**16),
    st.integers(1, 5),
    st.sampled_from(["even", "one", "random"]),
)
def test_controls_are_others_and_as_frequent(seed: int, nearest: int, shape: str) -> None:
    rng = np.random.default_rng(seed)
    frequency = {"even": np.full(VOCAB, 1 / VOCAB), "one": np.eye(VOCAB)[3], "random": rng.dirichlet(np.ones(VOCAB))}
    near_table = nearest_codes(CODEBOOK, nearest)
    tokens = rng.integers(VOCAB, size=(2, 3))
    near = near_table[tokens]
    controls = matched_codes(tokens, near, frequency[shape], rng)
    assert controls.shape == near.shape
    for place in np.ndindex(tokens.shape):
        near_codes = {int(tokens[place]), *near[place].tolist()}
        assert len(set(controls[place].tolist())) == nearest
        assert not near_codes & set(controls[place].tolist())


def test_a_control_is_about_as_frequent_as_the_code_that_it_stands_for():
    rng = np.random.default_rng(2)
    codes = 400
    frequency = np.sort(rng.dirichlet(np.full(codes, 0.3)))[::-1]
    tokens = np.arange(codes)
    near = nearest_codes(rng.standard_normal((codes, 3)), 3)[tokens]
    controls = matched_codes(tokens, near, frequency, rng)
    assert np.abs(controls - near).max() <= 16 + 4 * 4  # frequency falls with the index, so ranks are indices


def test_the_nearest_codes_hold_more_mass_where_mass_follows_distance():
    """A target whose distribution falls with the distance from one code; and one that knows nothing of distance."""
    rng = np.random.default_rng(3)
    book = rng.standard_normal((60, 2))
    near_table = nearest_codes(book, 5)
    apart = np.square(book[:, None] - book).sum(-1)
    smooth = np.exp(-2 * apart)
    smooth /= smooth.sum(1, keepdims=True)
    tokens = rng.integers(60, size=(4, 50))
    near = near_table[tokens]
    controls = matched_codes(tokens, near, smooth[tokens].mean(axis=(0, 1)), rng)
    masses = [np.take_along_axis(smooth[tokens], chosen, -1).sum(-1) for chosen in (near, controls)]
    premises = held(50, near_mass=masses[0], control_mass=masses[1])
    assert premises.near_ratio().value > 3
    mixed = smooth[:, rng.permutation(60)]
    masses = [np.take_along_axis(mixed[tokens], chosen, -1).sum(-1) for chosen in (near, controls)]
    assert 0.5 < held(50, near_mass=masses[0], control_mass=masses[1]).near_ratio().value < 2


def test_sizes_that_leave_nothing_to_compare_with_are_refused():
    with pytest.raises(ValueError, match=r"expected 1\.\.4 nearest codes, got 5"):
        PremiseRecorder(NEIGHBOURS, 1, nearest=5)
    with pytest.raises(ValueError, match="leave too few to compare with; expected at most 2"):
        PremiseRecorder(nearest_codes(CODEBOOK[:6], 3), 1, nearest=3)
    with pytest.raises(ValueError, match="nothing was drawn"):
        PremiseRecorder(NEIGHBOURS, 1, nearest=3).premises()
