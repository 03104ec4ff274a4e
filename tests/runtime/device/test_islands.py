"""MuLo-SD on the device: each kernel is the reference's, and whole decodes are the host's, token for token."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device import islands
from tests.runtime.device.grown import logits_of
from tests.runtime.device.islands import begin, cycle_of, draft, finish, method_of, repairs_agree
from tests.runtime.device.test_mutants import planted
from underpaint.algos.accept.mulo import passing_cells
from underpaint.algos.arrays import BoolArray
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.mulo import Repair
from underpaint.runtime.device import drawing_plan
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.drawing_plan import plan_drawing
from underpaint.runtime.device.kernels.probs import sampled_probs
from underpaint.runtime.device.kernels.walk import DONE, NOT_FINITE
from underpaint.runtime.device.runner import DeviceError, DeviceRunner
from underpaint.runtime.device.sampler_weights import read_enlarger
from underpaint.runtime.device.slots import Arrival, ContinuousBatch
from underpaint.runtime.device.weights import decoder_bytes, stored_numbers
from underpaint.runtime.engines.context import EngineContext, EngineError
from underpaint.runtime.methods.multi_scale.device import island_envelope
from underpaint.runtime.methods.registry import METHODS, build_method, resolve
from underpaint.runtime.pipeline import Pipeline
from underpaint.runtime.resampling.resampler import TokenNetwork
from underpaint.strategies import distributions
from underpaint.zoo.load import locate

PIECES = Repair("local", 0, "islands", window=2)
"""`mulo-islands`, its rows two cells behind in repair."""
SERIAL = Repair("local", 1, "serial", window=2)
"""As `mulo` is tuned at temperature 0."""
RASTER = Repair("raster", 1, "serial")


@settings(max_examples=8)
@given(data=st.data())
def test_a_repair_is_the_reference_s_step_by_step(data: st.DataObject) -> None:
    grid = Grid(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)))
    repair = Repair(
        data.draw(st.sampled_from(["raster", "local", "local", "local"])),
        data.draw(st.integers(0, min(2, max(grid) - 1))),
        data.draw(st.sampled_from(["serial", "islands"])),
        data.draw(st.sampled_from([None, *range(1, grid.width + 1)])),
    )
    mask = st.lists(st.sampled_from([True, False, False]), min_size=grid.cells, max_size=grid.cells)
    rejected = [np.array(data.draw(mask)).reshape(grid) for _ in range(2)]
    assert repairs_agree(rejected, repair, data.draw(st.integers(1, 6)))


@settings(max_examples=8)
@given(data=st.data(), k=st.sampled_from([0, 1, 3]), tau=st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5]))
def test_drafts_are_judged_as_the_reference_does(data: st.DataObject, k: int, tau: float) -> None:
    vocab_size, cells = 5, 3
    given_rows = np.stack([data.draw(distributions(vocab_size)) for _ in range(2 * cells)]).astype(np.float32)
    logits = logits_of(given_rows)
    rows = sampled_probs(logits[None], SamplingParams()).numpy()
    tokens = np.array(data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=2 * cells, max_size=2 * cells)))
    near = (np.arange(vocab_size)[:, None] + np.arange(1, k + 1)) % vocab_size
    expected = 1 - passing_cells(rows.astype(np.float64), tokens, near, tau).reshape(2, cells).astype(int)
    small = (torch.zeros(2, cells, dtype=torch.int32) for _ in range(4))
    out = islands.kernels.IslandBuffers(
        torch.from_numpy(tokens).view(2, cells), *small, *torch.zeros(2, 2, dtype=torch.int64)
    )
    cell_logits = logits.view(1, 2, cells, vocab_size)
    behind = torch.cat([cell_logits[:, :, 1:], torch.full((1, 2, 1, vocab_size), torch.nan)], dim=2)
    behind[0, 0, 0, 2] = torch.nan
    expected[0, 1] = 2
    bound, codes = torch.tensor([tau], dtype=torch.float64), torch.from_numpy(near).to(torch.int32)
    islands.kernels.judge(behind, cell_logits[:, :, :1].contiguous(), SamplingParams(), codes, bound, out)
    assert out.rejected.tolist() == expected.tolist()


CASES = {
    "mulo-islands": (PIECES, 0.35, 1),
    "mulo": (SERIAL, 0.3, 2),
    "mulo-raster": (RASTER, 0.1, 2),
}


@cache
def on_host(name: str, temperature: float, image: int) -> list[int]:
    return islands.repaired_on_host(*CASES[name], temperature, image)


@pytest.mark.parametrize(
    ("name", "temperature", "images"),
    [("mulo-islands", 0, 1), ("mulo-islands", 1, 3), ("mulo", 1, 2), ("mulo-raster", 0, 1)],
)
def test_a_batch_is_the_reference_s_single_decodes(name: str, temperature: float, images: int) -> None:
    actual = islands.repaired_on_device(method_of(*CASES[name], temperature), range(images))
    assert actual == [on_host(name, temperature, image) for image in range(images)]


def test_images_that_wait_for_a_batch_are_drawn_by_the_next_one_and_seen_on_the_way() -> None:
    """Of three images in two slots the first is removed; what is kept of a draft shows once it is judged."""
    how = method_of(*CASES["mulo-islands"], 1.0)
    runner = DeviceRunner(
        DecoderForward(islands.models()[0], 1),
        None,
        how,
        islands.HIGH,
        islands.PREFIX,
        2,
        islands.CPU,
        low=islands.drafting(),
    )
    batch, decoded_images, seen = ContinuousBatch(runner), {}, {0: 0, 1: 0, 2: 0}
    for image in (0, 1):
        batch.add(image, Arrival(*_arrival(image)))
    for step in range(1000):
        decoded_images |= dict(batch.step())
        if step == 3:
            batch.remove(0)
            batch.add(2, Arrival(*_arrival(2)))
        for image, count in batch.cells.items():
            now = batch.progress(image)
            assert seen[image] <= now.decided.sum() == count
            assert (now.refused is not None and now.refused.size > 0) == (count > 0)
            seen[image] = count
        if not len(batch):
            break
    assert sorted(decoded_images) == [1, 2]
    assert min(seen[1], seen[2]) > 0
    assert [decoded_images[image].tokens.tolist() for image in (1, 2)] == islands.repaired_on_device(how, (1, 2))


def _arrival(image: int) -> tuple[Any, ...]:
    condition, low = islands.conditions_of([image])
    return condition, 5, image, None, low


def test_a_batch_is_its_single_runs_however_few_positions_a_pass_has() -> None:
    how = method_of(*CASES["mulo-islands"], 1)
    expected, alone = [on_host("mulo-islands", 1, image) for image in range(3)], []
    for image in range(2):
        cycle = cycle_of(how, 1, positions=3)
        begin(cycle, [image])
        alone += finish(cycle)
        (kept_cells,), (refused,) = cycle.draft_outcome()
        assert 0 < refused == islands.HIGH.cells - len(kept_cells) < islands.HIGH.cells
    assert alone == expected[:2]
    assert len(set(map(tuple, expected))) == 3


def test_a_spoilt_image_ends_alone_and_leaves_nothing_behind() -> None:
    cycle = cycle_of(method_of(*CASES["mulo-islands"], 1), 2)
    for decoder in (cycle._target, cycle._low.target):
        decoder.spoilt = (0,)
        begin(cycle, (0, 1))
        image_tokens = finish(cycle)
        assert cycle.state.verdicts.status.tolist() == [NOT_FINITE, DONE]
        assert image_tokens[1] == on_host("mulo-islands", 1, 1)
        decoder.spoilt = ()
    begin(cycle, (2, 1))
    assert finish(cycle) == [on_host("mulo-islands", 1, image) for image in (2, 1)]


def test_a_rejection_in_raster_order_is_one_refusal() -> None:
    cycle = cycle_of(method_of(*CASES["mulo-raster"], 1), 1)
    begin(cycle, [0])
    draft(cycle)
    (kept_cells,), (refused,) = cycle.draft_outcome()
    assert refused == 1
    assert kept_cells.tolist() == list(range(int(cycle.islands.first[0])))


def test_the_enlarger_reads_back_as_the_network_that_was_exported() -> None:
    located = locate("sampler_up", "upsampler")
    model, tokens = read_enlarger(located, torch.device("cpu")), np.arange(12).reshape(3, 4) * 83 % 1024
    with torch.no_grad():
        actual = model(torch.from_numpy(tokens)[None])[0].numpy()
    np.testing.assert_allclose(actual, TokenNetwork(located.path)(tokens), atol=2e-4)
    with pytest.raises(EngineError, match="export it again"):
        read_enlarger(locate("sampler_down", "downsampler"), torch.device("cpu"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_tuned_methods_have_a_form(temperature: float) -> None:
    assert {"mulo", "mulo-islands", "mulo-raster"} <= {
        spec.name for spec in METHODS if spec.tuned.at(temperature).runs_on_device
    }


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("resampler=superres", r"through pictures \('superres'\) has no form on the device; set resampler=latent"),
        ("rule=exact", "rule 'exact' of cells has no form on the device; set rule=pooled"),
        ("draft_int8=true", "multiplies in 8 bits has no form on the device; set draft_int8=none"),
        ("rows=2", "some rows at a time have no form on the device; set rows=none"),
        ("adaptive=true", "set adaptive=false"),
        ("draft_adaptive=true", "set draft_adaptive=false"),
    ],
)
def test_what_has_no_form_is_told_with_its_remedy(setting: str, told: str) -> None:
    config = resolve("mulo-islands", 1.0, settings=[setting])
    with pytest.raises(AssertionError, match=told):
        assert config.device_gap is None, config.device_gap


def test_a_plan_counts_both_targets_and_what_lies_between(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline.open(backend="device", context=EngineContext(threads=1))
    needed = {}
    for name in ("zipar", "mulo-islands"):
        method = build_method(name, resolve(name, 1.0), pipeline.tables)
        needed[name] = plan_drawing(pipeline, [method], pipeline.sampling, torch.device("cpu"), 2).needed
    low, byte_counts = pipeline.low.target(2).decoder, list[int]()
    target, vocab_size = pipeline.high.decoder.config, pipeline.high.decoder.config.vocab_size
    assert needed["mulo-islands"] - needed["zipar"] > 8 * 2 * target.grid.cells * vocab_size
    monkeypatch.setattr(drawing_plan, "check_memory", lambda device, needed, *more: byte_counts.append(needed))
    for names in (("zipar",), ("zipar", "mulo-islands")):
        methods = [build_method(name, resolve(name, 1.0), pipeline.tables) for name in names]
        buffers = plan_drawing(pipeline, methods, pipeline.sampling, torch.device("cpu"), 2).needed
        byte_counts[-1] -= buffers
    enlarger = pipeline.low.networks("latent", 2)[0]
    assert byte_counts[1] - byte_counts[0] == decoder_bytes(low) + 4 * stored_numbers(enlarger)
    assert stored_numbers(low.located) < decoder_bytes(low) < 4 * stored_numbers(low.located)  # layers in 8 bits
    narrow = build_method("mulo", resolve("mulo", 1.0, settings=["draft_window=9"]), pipeline.tables)
    with pytest.raises(DeviceError, match=r"method 'mulo': draft_window: expected 1\.\.8"):
        plan_drawing(pipeline, [narrow], pipeline.sampling, torch.device("cpu"), 1)
    wide = build_method("mulo", resolve("mulo", 1.0, settings=["radius=16"]), pipeline.tables)
    with pytest.raises(DeviceError, match=r"method 'mulo': radius: expected 0\.\.15"):
        plan_drawing(pipeline, [wide], pipeline.sampling, torch.device("cpu"), 1)


def random_masks(share: float) -> list[list[BoolArray]]:
    rng = np.random.default_rng(7)
    return [[rng.random((5, 5)) < share for _ in range(2)] for _ in range(2)]


def repairs_all_agree() -> bool:
    repairs = (PIECES, SERIAL, Repair("local", 1, "islands", window=2), Repair("raster", 1, "serial", 2))
    return all(
        repairs_agree(masks, repair, 2)
        for share, repair in zip((0.4, 0.15, 0.1, 0.05), repairs, strict=True)
        for masks in random_masks(share)
    )


def decodes_agree() -> bool:
    how = method_of(*CASES["mulo-islands"], 1)
    return islands.repaired_on_device(how, (0, 1)) == [on_host("mulo-islands", 1, image) for image in (0, 1)]


MUTANTS = {
    "a neighbour of an island is left out": (
        ("islands", "beside = column + turn % (2 * radius + 1) - radius", "beside = column + turn % (2 * radius + 1)"),
        repairs_all_agree,
    ),
    "an accepted cell before the first rejected one is redrawn": (
        ("islands", "again = again & (cell >= begun)", "again = again & (begun < most)"),
        repairs_all_agree,
    ),
    "every image has the islands of the first": (
        ("repair", "whose = tl.load(islands.labels + image * most", "whose = tl.load(islands.labels"),
        repairs_all_agree,
    ),
    "every image's cells are refused as the first's": (
        ("islands", "again | (tl.load(islands.rejected + image * most", "again | (tl.load(islands.rejected"),
        repairs_all_agree,
    ),
    "islands do not join at corners": (
        ("islands", "there = (own >= 0) & (above >= 0)", "there = (own >= 0) & (turn % 2 == 1) & (above >= 0)"),
        repairs_all_agree,
    ),
    "keys of rejected drafts are still seen": (
        ("islands", "1 - again.to(tl.int32), inside", "1 + 0 * again.to(tl.int32), inside"),
        decodes_agree,
    ),
    "a cell sees those that are decided beside it": (
        (
            "repair",
            "tl.load(islands.ready + mine + fed, inside, other=1) == 0",
            "tl.load(islands.ready + mine + fed, inside, other=1) >= 0",
        ),
        repairs_all_agree,
    ),
    "a proxy holds what is not decided yet": (
        ("repair", "there = there & (tl.load(islands.ready + mine + other, other < N, other=1) == 0)", "there = there"),
        repairs_all_agree,
    ),
    "a step forgets what did not fit into its pass": (
        ("repair", "tl.where(rest < N, rest, 0)", "rest * 0"),
        repairs_all_agree,
    ),
    "a cell's keys are forgotten": (("repair", "(settles | fresh)", "settles"), repairs_all_agree),
    "rows of an island do not wait for each other": (
        ("repair", "other // W * (w - 1))[None, :] <= reach", "other // W * W)[None, :] <= reach"),
        repairs_all_agree,
    ),
    "the last code that is pooled is left out": (
        ("islands", "tl.where(column < K, tl.gather", "tl.where(column < K - 1, tl.gather"),
        decodes_agree,
    ),
    "cells are judged by the first row's distribution": (
        ("islands", "(place.to(tl.int64) - 1) * V", "place.to(tl.int64) * 0"),
        decodes_agree,
    ),
    "the first rejected cell is told by its own token": (
        ("islands", "(line * most + begun - 1)", "(line * most + begun)"),
        repairs_all_agree,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_seen(name: str) -> None:
    change, agree = MUTANTS[name]
    with planted(*change):
        assert not agree()


def test_what_the_mutants_change_agrees_as_it_is() -> None:
    assert repairs_all_agree()
    assert island_envelope(Grid(64, 64)).nodes == 64
