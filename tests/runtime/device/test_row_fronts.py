"""Row fronts whose steps differ from image to image: whole decodes in adaptive windows and by parallel Jacobi rows."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device import row_fronts
from tests.runtime.device.row_fronts import CPU, PREFIX, SEED, Sampled, adaptive, given_decodes_agree, jacobi
from tests.runtime.device.test_fronts import CONDITIONS, ModelGrid
from tests.runtime.device.test_kernels import CONFIG, model_of, whole
from tests.runtime.device.trees import UNIFORMS
from underpaint.algos.chance import sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi_front import JacobiFronts, jacobi_fronts
from underpaint.algos.spatial.zipar import zipar
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.forms import BatchSizes, form_of
from underpaint.runtime.device.kernels.walk import DONE, NOT_FINITE
from underpaint.runtime.device.runner import DeviceRunner
from underpaint.runtime.methods.fronts.device import FrontForm, JacobiFrontForm, jacobi_front_envelope
from underpaint.runtime.methods.fronts.method import JacobiFrontsConfig
from underpaint.runtime.methods.method import ModelTables
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.strategies import distributions

SMALL, LOW = Grid(2, 5), Grid(2, 3)


def method(name: str, temperature: float) -> FrontForm | JacobiFrontForm:
    return adaptive(2, temperature) if name == "zipar-adaptive" else jacobi(2, 2, "left", "all", temperature)


@pytest.mark.parametrize(("temperature", "images"), [(0.0, (0, 6)), (1.0, (6, 0, 1))])
@pytest.mark.parametrize("name", ["zipar-adaptive", "pjd"])
def test_a_batch_of_unequal_progress_is_the_reference_s_single_decodes(
    name: str, temperature: float, images: Sequence[int]
) -> None:
    how, models = method(name, temperature), Sampled.of(4, SMALL, temperature)
    expected = {image: models.alone(how, image) for image in images}
    assert models.batch(how, images) == list(expected.values())
    assert len({decoded.passes for decoded in expected.values()}) > 1


@pytest.mark.parametrize("name", ["zipar-adaptive", "pjd"])
def test_a_fourth_image_changes_none_of_three(name: str) -> None:
    how, models = method(name, 1.0), Sampled.of(2, Grid(2, 3), 1.0, vocab_size=3)
    assert models.batch(how, (3, 0, 1, 4)) == [models.alone(how, image) for image in (3, 0, 1, 4)]


@st.composite
def givens(draw: st.DrawFn) -> row_fronts.Given:
    """Distributions with ties and zeros, one-hot ones, and uniforms of 0."""
    vocab_size = draw(st.sampled_from([2, 3, 5]))
    rows = [draw(distributions(vocab_size)) for _ in range(draw(st.integers(1, 4)))]
    uniforms = [draw(UNIFORMS) for _ in range(7)]
    return row_fronts.Given(np.stack(rows).astype(np.float32), tuple(uniforms))


@settings(max_examples=5)
@given(data=st.data(), one=givens())
def test_adaptive_windows_decode_as_the_reference_does(data: st.DataObject, one: row_fronts.Given) -> None:
    grid = Grid(data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4)))
    assert given_decodes_agree(adaptive(data.draw(st.integers(1, grid.width))), grid, one, (0, 1))


@settings(max_examples=7)
@given(data=st.data(), one=givens())
def test_parallel_jacobi_rows_decode_as_the_reference_does(data: st.DataObject, one: row_fronts.Given) -> None:
    grid = Grid(data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4)))
    lead, window = (data.draw(st.integers(1, grid.width)) for _ in range(2))
    how = jacobi(
        lead, window, data.draw(st.sampled_from(["uniform", "left"])), data.draw(st.sampled_from(["top", "all"]))
    )
    assert given_decodes_agree(how, grid, one, (0, 1))


@torch.no_grad()
@pytest.mark.parametrize("name", ["zipar-adaptive", "pjd"])
def test_a_decode_by_a_model_is_the_reference_s(name: str) -> None:
    """At temperature 0 the command line draws by one, in `tests/published`."""
    model, sampler = model_of(CONFIG), SamplingParams()
    rows, fronts = model.embed(CONDITIONS, None), JacobiFronts(2, 2, "left", "all")
    expected = []
    for image, row in enumerate(rows):
        target, chance = ModelGrid(model, row[None], sampler, LOW), sampling(SEED, image)
        decoded = jacobi_fronts(target, fronts, chance) if name == "pjd" else zipar(target, 2, chance, adaptive=True)
        expected.append((decoded.tokens.tolist(), len(decoded.passes)))
    how = JacobiFrontForm(fronts, sampler) if name == "pjd" else FrontForm(2, sampler, adaptive=True)
    runner = DeviceRunner(DecoderForward(model, 1), None, how, LOW, PREFIX, 2, CPU)
    runner.begin(rows, [SEED, SEED], [0, 1])
    decoded_images = runner.finish(2)
    assert [one.error for one in decoded_images] == [None, None]
    assert [(one.tokens.tolist(), one.cycles) for one in decoded_images] == expected


@pytest.mark.parametrize("name", ["zipar-adaptive", "pjd"])
def test_a_spoilt_image_ends_alone_and_leaves_nothing_behind(name: str) -> None:
    models, grid, how = Sampled.of(2, Grid(2, 3), 1.0, vocab_size=3), Grid(2, 3), method(name, 1.0)
    target = row_fronts.HashForward(models.lines)
    cycle = how.cycle(target, None, BatchSizes(grid, PREFIX, 2, CPU))
    first = target.embed(torch.tensor([row_fronts.condition(image, 3) for image in (0, 1)]))
    for spoilt, ended in (((0,), [NOT_FINITE, DONE]), ((), [DONE, DONE])):
        target.spoilt = spoilt
        cycle.begin(first, whole(SEED, SEED), whole(0, 1))
        for _ in range(grid.cells):
            cycle.run()
        assert cycle.state.verdicts.status.tolist() == ended
        for image in (1, *(() if spoilt else (0,))):
            assert cycle.state.progress.decided[image].tolist() == models.alone(how, image).tokens


def test_what_does_not_fit_is_refused_before_anything_is_allocated() -> None:
    sampler = SamplingParams()
    assert jacobi_front_envelope(JacobiFronts(6, 6), Grid(32, 32)).nodes == 63
    with pytest.raises(ValueError, match="passes of 65 positions on a grid of 32 x 34, the device's hold 64"):
        JacobiFrontForm(JacobiFronts(6, 6), sampler).layout(Grid(32, 34), 5, None, 1)
    with pytest.raises(ValueError, match=r"expected lead in 1\.\.5 on a grid of 2 x 5, got 6"):
        JacobiFrontForm(JacobiFronts(6, 2), sampler).layout(SMALL, 5, None, 1)
    with pytest.raises(ValueError, match="where the lines of the picture end in a token"):
        JacobiFrontForm(JacobiFronts(2, 2), sampler).layout(SMALL, 5, 9, 1)


def test_the_named_methods_are_what_the_device_takes() -> None:
    tables = ModelTables(np.zeros((5, 1), dtype=np.int64), np.zeros((5, 2), dtype=np.float32))
    built = [build_method(name, resolve(name, 1.0), tables) for name in ("zipar-adaptive", "pjd")]
    sampler = SamplingParams(4.0, top_k=3)
    assert [form_of(one, sampler, Grid(8, 8)) for one in built] == [
        FrontForm(2, sampler, adaptive=True),
        JacobiFrontForm(JacobiFrontsConfig(4, 2, "left", "all"), sampler),
    ]
