"""Images that take free slots of a running batch are what they are alone, whenever they come and whatever is beside."""

from collections.abc import Iterator

import pytest
import torch

from tests.mutants.harness import caught
from tests.runtime.device import row_fronts
from tests.runtime.device.tables import TableForward, Tables
from tests.runtime.device.test_decoding import GRID, METHODS, decoded, method, target_and_drafter
from underpaint.algos.accept import RULES
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi_front import JacobiFronts
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.runtime.device.forms import DeviceForm
from underpaint.runtime.device.runner import DecodedImage, DeviceRunner
from underpaint.runtime.device.slots import Arrival, ContinuousBatch, SlotCopy
from underpaint.runtime.methods.fronts.device import FrontForm, JacobiFrontForm
from underpaint.runtime.methods.windows.device import WindowForm

SMALL, CPU, SEED = Grid(2, 4), torch.device("cpu"), 5
IMAGES = (0, 1, 2, 6)
WINDOWS = {
    "maximal": JacobiWindow(3, "maximal", "left"),
    "lookup": JacobiWindow(3, "maximal", "lookup", passes=True, beside=0.85, last_row=True),
    "candidates": JacobiWindow(3, "maximal", "left", candidates=2, levels=2),
}


def arrivals(tables: Tables, images: tuple[int, ...] = IMAGES) -> Iterator[Arrival]:
    target = TableForward(tables, False)
    for image in images:
        yield Arrival(target.embed(torch.tensor([[image % tables.vocab_size]])), SEED, image)


def runner_of(how: DeviceForm, tables: tuple[Tables, Tables], batch: int, grid: Grid = SMALL) -> DeviceRunner:
    drafter = TableForward(tables[1], True) if how.drafts else None
    return DeviceRunner(TableForward(tables[0], False), drafter, how, grid, 1, batch, CPU)


def told(images: list[tuple[int, DecodedImage]]) -> list[tuple[list[int], int]]:
    assert sorted(number for number, _ in images) == list(range(len(images)))
    assert all(image.error is None and image.history.shape == (image.cycles, 3) for _, image in images)
    return [(image.tokens.tolist(), image.cycles) for _, image in sorted(images)]


@pytest.mark.parametrize("name", ["chain", "eagle1", "adt", "scheduled", "opt", "traversal"])
def test_trees_of_images_that_come_late_are_the_reference_s(name: str) -> None:
    policy, rule, settings = METHODS[name]
    how, tables = method(policy, rule, 1, **settings), target_and_drafter(2)
    single = [decoded(how, tables, image, SEED, SMALL) for image in IMAGES]
    runner = runner_of(how, tables, 2)
    actual = told(list(runner.decode_all(arrivals(tables[0]))))
    assert actual == [(one.tokens.tolist(), len(one.cycles)) for one in single]


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_of_images_that_come_late_are_those_drawn_alone(name: str) -> None:
    rule = RULES["without_replacement" if name == "candidates" else "chain"].make()
    how, tables = WindowForm(rule, SamplingParams(guidance=2.0), window=WINDOWS[name]), target_and_drafter(2)
    alone = runner_of(how, tables, 1)
    single = [told(list(alone.decode_all(arrivals(tables[0], (image,)))))[0] for image in IMAGES]
    assert told(list(runner_of(how, tables, 2).decode_all(arrivals(tables[0])))) == single


@pytest.mark.parametrize(
    "how",
    [
        FrontForm(2, SamplingParams(guidance=1.0), adaptive=True),
        JacobiFrontForm(JacobiFronts(2, 2, "left", "all"), SamplingParams(guidance=1.0)),
    ],
    ids=["zipar-adaptive", "pjd"],
)
def test_row_fronts_of_images_that_come_late_are_the_reference_s(how: FrontForm | JacobiFrontForm) -> None:
    vocab_size = 4
    lines = torch.randn(1, row_fronts.LINES, vocab_size, generator=torch.Generator().manual_seed(1))
    target = row_fronts.HashForward(lines)
    runner = DeviceRunner(target, None, how, SMALL, row_fronts.PREFIX, 2, CPU)
    conditions = [target.embed(torch.tensor([row_fronts.condition(image, vocab_size)])) for image in IMAGES]
    alone = DeviceRunner(target, None, how, SMALL, row_fronts.PREFIX, 1, CPU)
    coming = [Arrival(one, SEED, image) for one, image in zip(conditions, IMAGES, strict=True)]
    single = [told(list(alone.decode_all([one])))[0] for one in coming]
    assert told(list(runner.decode_all(coming))) == single


ANY_ORDER = {
    "zipar": FrontForm(2, SamplingParams(guidance=1.0)),
    "raster": FrontForm(4, SamplingParams(guidance=1.0)),
    "zipar-adaptive": FrontForm(2, SamplingParams(guidance=1.0), adaptive=True),
    "pjd": JacobiFrontForm(JacobiFronts(2, 2, "left", "all"), SamplingParams(guidance=1.0)),
}


@pytest.mark.parametrize("name", [*ANY_ORDER, "eagle2"])
def test_progress_shows_every_cell_once_it_is_decided(name: str) -> None:
    if name == "eagle2":
        policy, rule, settings = METHODS[name]
        tables = target_and_drafter(2)
        runner, coming = runner_of(method(policy, rule, 1, **settings), tables, 2), list(arrivals(tables[0], (0, 1)))
    else:
        lines = torch.randn(1, row_fronts.LINES, 4, generator=torch.Generator().manual_seed(1))
        target = row_fronts.HashForward(lines)
        runner = DeviceRunner(target, None, ANY_ORDER[name], SMALL, row_fronts.PREFIX, 2, CPU)
        conditions = [target.embed(torch.tensor([row_fronts.condition(image, 4)])) for image in (0, 1)]
        coming = [Arrival(one, SEED, image) for image, one in enumerate(conditions)]
    batch, seen = ContinuousBatch(runner), dict[int, dict[int, int]]()
    for number, one in enumerate(coming):
        batch.add(number, one)
    assert batch.room == 0
    while len(batch):
        for number, image in batch.step():
            last_tokens = seen[number]
            assert len(last_tokens) >= SMALL.cells // 2
            assert all(image.tokens[cell] == token for cell, token in last_tokens.items())
        for number, count in batch.cells.items():
            now = batch.progress(number)
            assert now.decided.sum() == count
            assert now.history.shape == (now.cycles, 3)
            progress_tokens = {int(cell): int(now.tokens[cell]) for cell in now.decided.nonzero()[0]}
            assert progress_tokens.items() >= seen.get(number, {}).items()
            seen[number] = progress_tokens


def test_an_image_that_is_removed_makes_room_and_no_more_passes() -> None:
    policy, rule, settings = METHODS["chain"]
    how, tables = method(policy, rule, 1, **settings), target_and_drafter(2)
    runner = runner_of(how, tables, 2)
    batch, (first, second, third, fourth) = ContinuousBatch(runner), arrivals(tables[0])
    batch.add(7, first)
    batch.add(8, second)
    batch.step()
    batch.remove(7)
    assert (batch.room, len(batch)) == (1, 1)
    status = runner.cycle.state.verdicts.status
    assert int(status[0]) > 0
    batch.add(9, third)
    batch.remove(9)  # it has not entered yet
    batch.add(10, fourth)
    decoded_images = {}
    while len(batch):
        decoded_images |= dict(batch.step())
    for number, image in ((8, IMAGES[1]), (10, IMAGES[3])):
        assert decoded_images[number].tokens.tolist() == decoded(how, tables, image, SEED, SMALL).tokens.tolist()


def test_prompts_of_unequal_length_begin_together() -> None:
    """The shorter one is filled up in front, where it is hidden."""
    policy, rule, settings = METHODS["chain"]
    how, tables = method(policy, rule, 1, **settings), target_and_drafter(2)
    first, second, *_ = arrivals(tables[0])
    longer = second._replace(condition=torch.nn.functional.pad(second.condition, (0, 0, 2, 0)))
    target, drafter = TableForward(tables[0], False), TableForward(tables[1], True)
    runner = DeviceRunner(target, drafter, how, SMALL, 3, 2, CPU)
    begun, hidden = runner.cycle.begin, []
    runner.cycle.begin = lambda *args: hidden.append(args[3].tolist()) or begun(*args)  # type: ignore[method-assign, func-returns-value]
    actual = told(list(runner.decode_all([first, longer])))
    assert hidden == [[2, 0, 2, 0]]
    assert [tokens for tokens, _ in actual] == [
        decoded(how, tables, one, SEED, SMALL).tokens.tolist() for one in (0, 1)
    ]


def test_a_batch_does_not_wait_for_its_slowest_image() -> None:
    policy, rule, settings = METHODS["eagle2"]
    how, tables = method(policy, rule, 1, **settings), target_and_drafter(2)
    lengths = {image: len(decoded(how, tables, image, SEED, SMALL).cycles) for image in range(12)}
    ordered = sorted(lengths, key=lengths.__getitem__)
    images = tuple(image for pair in zip(ordered[:4], ordered[-4:], strict=True) for image in pair)
    runner, steps = runner_of(how, tables, 2), 0
    run = runner.step

    def counted() -> None:
        nonlocal steps
        steps += 1
        run()

    runner.step = counted  # type: ignore[method-assign]
    cycles = [cycles for _, cycles in told(list(runner.decode_all(arrivals(tables[0], images))))]
    in_batches = sum(max(pair) - 1 for pair in zip(cycles[::2], cycles[1::2], strict=True))
    assert steps < in_batches
    assert steps >= (sum(cycles) - len(cycles)) / 2


def test_images_are_taken_as_slots_become_free() -> None:
    policy, rule, settings = METHODS["chain"]
    how, tables, arrival_numbers = method(policy, rule, 1, **settings), target_and_drafter(2), list[int]()

    def coming() -> Iterator[Arrival]:
        for number, one in enumerate(arrivals(tables[0])):
            arrival_numbers.append(number)
            yield one

    drawing = runner_of(how, tables, 2).decode_all(coming())
    next(drawing)
    assert arrival_numbers == [0, 1]
    next(drawing)
    assert arrival_numbers == [0, 1, 2]


FORGOTTEN = {
    "noise": lambda cycle: (cycle.state.noise.images,),
    "decided tokens": lambda cycle: (cycle.state.progress.decided,),
    "features": lambda cycle: (cycle.state.pending_features,),
    "what the policy learned": lambda cycle: (*cycle._growth.limits, *cycle._growth._depths._state),
}


@pytest.mark.parametrize("buffer", FORGOTTEN)
def test_a_buffer_that_is_not_copied_is_missed(buffer: str) -> None:
    adaptive = {"max_depth": 6, "start_depth": 1, "max_width": 4, "start_width": 4, "total_tokens": 9}
    how, tables = method("adt", "point", 1, **adaptive), target_and_drafter(2)
    single = [decoded(how, tables, image, SEED, GRID) for image in IMAGES]
    runner = runner_of(how, tables, 2, GRID)
    assert runner._single is not None
    one, copy = runner._single
    left_out = {part.data_ptr() for part in FORGOTTEN[buffer](one)}
    kept_pairs = tuple(pair for pair in copy.pairs if pair[0].data_ptr() not in left_out)
    assert len(kept_pairs) < len(copy.pairs)
    runner._single = one, SlotCopy(kept_pairs, 2)
    with caught():
        actual = told(list(zip(range(99), (image for _, image in _first(runner, tables, 30)), strict=False)))
        assert sorted(actual) == sorted((one.tokens.tolist(), len(one.cycles)) for one in single)


def _first(runner: DeviceRunner, tables: tuple[Tables, Tables], most: int) -> Iterator[tuple[int, DecodedImage]]:
    """The images, of a run that a planted bug may keep from ending."""
    run, steps = runner.step, 0

    def bounded() -> None:
        nonlocal steps
        steps += 1
        assert steps < most, "it does not end"
        run()

    runner.step = bounded  # type: ignore[method-assign]
    yield from runner.decode_all(arrivals(tables[0]))
