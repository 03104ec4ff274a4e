"""Forward passes by an engine bound to the device's state are the torch forward's: pass by pass, decode by decode."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.runtime.device.engines import (
    CPU,
    DRAFTER,
    GRID,
    IMAGES,
    METHODS,
    SEED,
    SMALL,
    Pair,
    Passed,
    begin,
    by_torch,
    condition_of,
    cycle_of,
    decoded,
    exported,
    in_torch,
    method,
    models,
    on_onnx,
    over,
    passed,
)
from tests.runtime.device.test_kernels import FAMILIES, model_of
from tests.runtime.device.test_mutants import planted
from tools.device_programs import count_cycle
from tools.device_sizes import XL, method_of
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.jacobi_front import JacobiFronts
from underpaint.artifacts.device_graph import PassSize
from underpaint.export.decoders import GraphFormat
from underpaint.runtime.conditions import ConditionEncoder
from underpaint.runtime.device.cycle import DeviceCycle
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.engine_forward import EngineForward, onnx_graphs
from underpaint.runtime.device.folder import DeviceModels, FolderModels
from underpaint.runtime.device.forms import BatchSizes
from underpaint.runtime.device.forwards import Attend, Cache
from underpaint.runtime.device.providers import passes_of
from underpaint.runtime.device.runner import DeviceRunner
from underpaint.runtime.device.slots import Arrival
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.methods.fronts.device import FrontForm, JacobiFrontForm
from underpaint.sim.latency.machines import MACHINES


@pytest.fixture(scope="module")
def by_engine(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("engines")
    target, drafter = models()
    return Pair(on_onnx(target, folder, 2), on_onnx(drafter, folder, 2, "drafter"))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_is_the_torch_forward_s(family: str, tmp_path: Path) -> None:
    model = model_of(FAMILIES[family])
    forward = on_onnx(model, tmp_path, 2)
    expected = passed(DecoderForward(model, 2), model.config.drafter)
    for times in (1, 2):  # the second time at the same addresses
        actual = passed(forward, model.config.drafter, times)
        torch.testing.assert_close(actual, expected, atol=2e-4, rtol=1e-4)


def test_models_of_a_folder_share_weights_whatever_engines_they_are_on(tmp_path: Path) -> None:
    folder = FolderModels(exported(model_of(SMALL), tmp_path), exported(model_of(DRAFTER), tmp_path, name="drafter"))
    encoder, engines = ConditionEncoder(SMALL), tuple(onnx_graphs(each) for each in folder.decoders)

    def read(count: int, previous: DeviceModels | None = None, rows: int = 1) -> DeviceModels:
        return DeviceModels.read(folder, encoder, rows, CPU, engines[:count], previous)

    one = read(1)
    assert one.drafter is None
    two = read(2, one, rows=2)
    assert isinstance(one.target, EngineForward)
    assert isinstance(two.target, EngineForward)
    assert isinstance(two.drafter, EngineForward)
    assert two.target.embeddings is one.target.embeddings
    assert (one.rows, two.rows, two.drafter.rows) == (1, 2, 2)
    assert read(1, two).drafter is None
    torch_models = read(0, two)
    assert isinstance(torch_models.target, DecoderForward)
    assert isinstance(torch_models.drafter, DecoderForward)
    again = read(0, torch_models, rows=2)
    assert isinstance(again.drafter, DecoderForward)
    assert again.module is torch_models.module
    assert again.drafter.model is torch_models.drafter.model


def test_a_drafter_in_eight_bits_has_graphs_of_what_they_stand_for(tmp_path: Path) -> None:
    model = model_of(FAMILIES["drafter"])
    forward = over(exported(model, tmp_path, GraphFormat(eight_bits=True)), 2)
    actual, expected = passed(forward, True), passed(DecoderForward(model, 2), True)
    assert 1e-4 < (actual.features - expected.features).abs().max() < 0.3


@pytest.mark.parametrize("family", ["llamagen", "chameleon", "learnt", "shared keys"])
@torch.no_grad()
def test_a_condition_is_taken_in_as_the_torch_forward_does(family: str, tmp_path: Path) -> None:
    model = model_of(FAMILIES[family])
    condition, positions = torch.randn(2, 3, 24), torch.arange(-3, 0).repeat(2, 1)
    outputs = []
    for forward in (DecoderForward(model, 1), on_onnx(model, tmp_path, 1)):
        cache = Cache(forward.config, 2, 9, 7, torch.float32, CPU, forward.places)
        cache.unseen.copy_(torch.tensor([0, 2]))
        hidden_states = forward.hidden(condition.clone(), positions, cache.prefill())
        outputs.append((hidden_states[:, -1].clone(), cache.committed[:, :, :, :, :9]))
    torch.testing.assert_close(outputs[1], outputs[0], atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", METHODS)
def test_a_decode_is_the_torch_forward_s(name: str, temperature: float, by_engine: Pair) -> None:
    """Three images of unequal progress in one batch, and each of them alone."""
    how = method(name, temperature)
    expected, cycles = by_torch(name, temperature)
    assert len(set(cycles)) > 1 or name == "ar"
    cycle = cycle_of(by_engine, how, 3)
    assert decoded(cycle, IMAGES) == expected
    assert cycle.state.progress.cycles.tolist() == cycles
    if temperature and name != "ar":
        single = cycle_of(by_engine, how, 1)
        assert [decoded(single, [image])[0] for image in IMAGES] == expected


def test_an_image_takes_a_free_slot_on_an_engine(by_engine: Pair) -> None:
    """It begins in a batch of one, for which the same engine makes the passes."""
    runner = DeviceRunner(*by_engine, method("eagle2", 1), GRID, 2, 2, CPU)
    assert runner.refills
    decoded_images = dict(runner.decode_all(Arrival(condition_of(image), SEED, image) for image in IMAGES))
    tokens = [decoded_images[place].tokens for place in range(len(IMAGES))]
    assert [line.tolist() for line in tokens if line is not None] == by_torch("eagle2", 1)[0]


@pytest.mark.parametrize("drafts", [False, True])
def test_row_fronts_run_on_an_engine(by_engine: Pair, drafts: bool) -> None:
    decodes, sampler = [], method("ar", 1).sampler
    how = JacobiFrontForm(JacobiFronts(1, 2), sampler) if drafts else FrontForm(2, sampler)
    for pair in (in_torch(), by_engine):
        cycle = how.cycle(pair.target, None, BatchSizes(GRID, 2, 2, CPU))
        decodes.append(decoded(cycle, (0, 1)))
    assert decodes[0] == decodes[1]


def test_end_of_line_tokens_run_on_an_engine(tmp_path: Path) -> None:
    model = model_of(replace(SMALL, rope="line", grid_side=2, grid_width=2, eol_token=1))
    decodes = []
    for forward in (DecoderForward(model, 2), on_onnx(model, tmp_path, 2)):
        drafter, how = in_torch().drafter, method("eagle2", 1)
        line = forward.line_token
        cycle = DeviceCycle(forward, drafter, how, Grid(2, 2), 2, 1, CPU, line_token=line)
        decodes.append(decoded(cycle, (0,)))
    assert decodes[0] == decodes[1]


def test_an_image_that_is_not_finite_leaves_nothing_behind(by_engine: Pair) -> None:
    """What a bias masks is multiplied with a weight of 0, which makes NaN of NaN: a batch begins on empty caches."""
    cycle = cycle_of(by_engine, method("eagle2", 0), 1)
    expected = decoded(cycle, (0,))
    for cache in (cycle.state.target_cache, cycle.state.draft_cache):
        assert cache is not None
        cache.committed.fill_(torch.nan)
        cache.slots.fill_(torch.nan)
    assert decoded(cycle, (0,)) == expected


def test_passes_are_those_that_the_program_makes(by_engine: Pair) -> None:
    class Told(EngineForward):
        """Notes the sizes that are bound."""

        def _bind(self, attend: Attend, rows: int, count: int):  # type: ignore[no-untyped-def]
            seen.add((self.config.drafter, count, attend.cache.joined.shape[4]))
            return super()._bind(attend, rows, count)

    seen: set[tuple[bool, int, int]] = set()
    for name in METHODS:
        seen.clear()
        pair = Pair(*(Told(one.config, one.embeddings, 2, one.engine) for one in by_engine))
        cycle = cycle_of(pair, method(name, 1), 2)
        begin(cycle, (0, 1))
        with torch.no_grad():
            cycle.run()
        passes = passes_of(method(name, 1), by_engine[0].config, by_engine[1].config, GRID, 2, 2, 2, torch.float32)
        assert {(drafts, size.most, size.places) for drafts in (0, 1) for size in passes[drafts].layers} == seen
    cache = cycle.state.target_cache.joined
    assert cache is not None
    assert passes[0].layers[0] == PassSize(1, 2, cache.shape[4])


@pytest.mark.parametrize("name", ["eagle2", "zipar", "pjd"])
def test_a_cycle_around_an_engine_waits_for_nothing_and_is_cheap(name: str) -> None:
    """Counted on tensors without numbers: copies in, one bias a pass, copies out."""
    program = count_cycle(XL, method_of(name, XL.vocab_size), batch=1, engine=True)
    inside = [node.name for node in program.nodes if node.part]
    assert inside.count("sees_kernel") == (6 if name == "eagle2" else 1)
    assert len(inside) <= 8 * inside.count("sees_kernel")
    assert "zeros" not in inside
    # a third of it for the table that tokens are looked up in
    assert program.ms(MACHINES["h200"], forwards=True) < 0.22


def test_graphs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    decoder = exported(models()[0], tmp_path)
    weights = decoder.located.manifest.weights
    assert weights is not None
    other = replace(decoder.located.manifest, weights=replace(weights, sha256="others"))
    with pytest.raises(EngineError, match=r"expected the graph of weights others, got of a test; `underpaint engine"):
        onnx_graphs(decoder._replace(located=decoder.located._replace(manifest=other)))
    with pytest.raises(EngineError, match="expected a float32 export for ONNX Runtime on the CPU, got fp16"):
        onnx_graphs(decoder._replace(config=replace(decoder.config, precision="fp16")))
    (tmp_path / "target.head.onnx").unlink()
    with pytest.raises(EngineError, match=r"write it with `underpaint engine .* --backend onnx`"):
        onnx_graphs(decoder)


@contextmanager
def _first_binding_for_all() -> Iterator[None]:
    """What was bound for the first cache of a size serves every other."""
    with pytest.MonkeyPatch.context() as patch:
        right = EngineForward._bound

        def stale(self: EngineForward, attend: Attend, rows: int, count: int) -> object:
            bound_passes = self.__dict__.setdefault("_stale", {})
            return bound_passes.setdefault((rows, count), right(self, attend, rows, count))

        patch.setattr(EngineForward, "_bound", stale)
        yield


MUTANTS = {
    "an address of another batch's cache": _first_binding_for_all,
    "one image's length for another's": lambda: planted("sees", "tl.load(lengths + image)", "tl.load(lengths)"),
    "a mask of the wrong image": lambda: planted("sees", "masks + (image * T + turn)", "masks + turn"),
    "a mask of the wrong position": lambda: planted("sees", "(image * T + turn) * WORDS", "image * T * WORDS"),
    "hidden positions of the wrong row": lambda: planted("sees", "unseen + row", "unseen + image"),
    "another place for new positions": lambda: planted("sees", "write_at + row, first", "write_at + row, 0"),
    "places left out": lambda: planted("sees", "(S if SPARSE else length)", "length - 1"),
}


@functools.cache
def passes_by_torch(seed: int) -> tuple[Passed, Passed]:
    """Of the target and of the drafter, by the torch forward: without any of what is planted."""
    target, drafter = models()
    return passed(DecoderForward(target, 2), False, seed=seed), passed(DecoderForward(drafter, 2), True, seed=seed)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_seen(name: str, by_engine: Pair) -> None:
    expected = {seed: passes_by_torch(seed) for seed in (4, 5)}

    def agree(seed: int = 4) -> bool:
        actual = [passed(one, drafts, seed=seed) for drafts, one in zip((False, True), by_engine, strict=True)]
        pairs = zip(actual, expected[seed], strict=True)
        return all(torch.allclose(one.features, other.features, atol=1e-3) for one, other in pairs)

    assert agree(), "the forward as it is agrees"
    with MUTANTS[name]():
        agree()  # whatever was bound first stays bound
        assert not agree(5)
