"""One engine loop on the device's slots, by the interpreter on models that are tables."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch

from tests.runtime.device.tables import TableForward, TableHost, Tables
from tests.serve import served, test_scheduling
from tests.serve.served import OTHER, PROMPT, Gate, ServedPipeline, events_of, gate_of, pictures, request
from tests.serve.test_scheduling import busy, error_of, let_pass, until
from underpaint.algos.draft import POLICIES
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Decoded, decode
from underpaint.algos.tree import NO_TOKEN
from underpaint.runtime.device.drawing import CapturedProgram
from underpaint.runtime.device.folder import EmbeddedBatch
from underpaint.runtime.device.forms import DeviceError, DeviceForm, form_of
from underpaint.runtime.device.runner import DeviceRunner
from underpaint.runtime.device.slots import ContinuousBatch
from underpaint.runtime.device.trial import DraftTrial
from underpaint.runtime.drawing import Drawing, ImageTask, noise_of
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.serve import device_slots, models
from underpaint.serve.device_slots import Kind
from underpaint.serve.engine import EngineLoop
from underpaint.serve.models import DeviceSettings, ServedModels
from underpaint.serve.progress import Job, Picture
from underpaint.serve.requests import CellsEvent, DrawRequest, Event, FinishedImage, PartialImage, RequestError

GRID, CODES, CPU = Grid(2, 3), 40, torch.device("cpu")
TARGET = Tables(2, CODES, rows=2, sharp=3.0)
DRAFTER = TARGET.near(3, 0.4)


class GatedForward(TableForward):
    """Its passes wait for a gate, but for those over conditions."""

    line_token = None

    def __init__(self, gate: Gate) -> None:
        super().__init__(TARGET, False)
        self.gate = gate

    def hidden(self, embeddings: Any, positions: Any, attend: Any) -> Any:
        if int(positions.min()) >= 0:
            self.gate.pass_through()
        return super().hidden(embeddings, positions, attend)


@dataclass
class TableModels:
    gate: Gate
    device: torch.device = CPU
    rows: int = 2
    target: Any = None
    drafter: Any = None

    def __post_init__(self) -> None:
        self.target, self.drafter = GatedForward(self.gate), TableForward(DRAFTER, True)

    def embed(self, conditions: Any) -> EmbeddedBatch:
        rows = self.target.embed(torch.tensor([[first_of(one)] for one in conditions]))
        return EmbeddedBatch(rows, torch.zeros(len(rows), dtype=torch.int64))


@dataclass
class TableDrawer:
    pipeline: Any
    batch: int
    models: TableModels
    cuda: bool = False
    prefix: int = 1

    def low(self, form: Any) -> None:
        """No smaller target drafts."""

    def captured(self, method: Any, sampling: SamplingParams) -> CapturedProgram:
        return CapturedProgram(self, method, sampling)  # type: ignore[arg-type]


@dataclass
class TablePipeline(ServedPipeline):
    backend: str = "device"
    grid: Grid = GRID
    high: Any = field(
        default_factory=lambda: SimpleNamespace(decoder=SimpleNamespace(config=SimpleNamespace(prefix=1)))
    )


def first_of(condition: Any) -> int:
    return int(condition.noise_key % CODES)


def planned(pipeline: Any, methods: Any, sampling: Any, device: Any, batch: int, *_: Any, **__: Any) -> Any:
    form_of(methods[0], sampling, pipeline.grid)
    drawer = TableDrawer(pipeline, batch, TableModels(pipeline.gate))
    return SimpleNamespace(batch=batch, rows=2, engine_decoders=0, open=lambda models=None: drawer)


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_slots, "plan_drawing", planned)
    monkeypatch.setattr(
        device_slots,
        "most_images",
        lambda method, sampling, pipeline: form_of(method, sampling, GRID).layout(GRID, CODES, None, 1).most_images,
    )


def engine_loop(slots: int = 2, *, draft_if_faster: bool = False) -> AbstractContextManager[EngineLoop]:
    settings = DeviceSettings("cpu", draft_if_faster=draft_if_faster)
    return served.engine_loop(slots, models=ServedModels("tables", {"64x64": TablePipeline()}, device=settings))


def form(draw_request: DrawRequest) -> DeviceForm:
    sampling = SamplingParams(
        guidance=2.0, temperature=1.0 if draw_request.temperature is None else draw_request.temperature
    )
    method = build_method(
        draw_request.method, resolve(draw_request.method, sampling.temperature), TablePipeline().tables
    )
    return form_of(method, sampling, GRID)


def reference(draw_request: DrawRequest) -> Decoded:
    """What the reference decodes by draft trees on the same tables, on the host."""
    how: Any = form(draw_request)
    condition = TablePipeline().condition(draw_request.prompt)
    hosts = [TableHost(one, GRID, how.sampler, one is DRAFTER, first_of(condition)) for one in (TARGET, DRAFTER)]
    drafter, policy = (None, POLICIES["chain"].make()) if how.policy is None else (hosts[1], how.policy)
    return decode(hosts[0], drafter, policy, how.rule, noise_of(condition, draw_request.seeds[0]))


def right(draw_request: DrawRequest, events: list[Event]) -> None:
    np.testing.assert_array_equal(pictures(events)[0], TablePipeline().picture(reference(draw_request).tokens))


LONG, SHORT = request(PROMPT, (1,), "ar"), request(OTHER, (2,), "speculative")
COLD, LAST = request(OTHER, (3,), "ar", temperature=0.0), request(OTHER, (4,), "ar", events=True)


def draw_with_unequal_arrivals() -> None:
    """Pictures of three kinds in two slots, each of which comes while others are at another cell."""
    with engine_loop(slots=2) as engine:
        gate = gate_of(engine)
        gate.shut()
        tickets = []
        for one, passes in ((LONG, 1), (LAST, 2), (SHORT, 1), (COLD, 2)):
            tickets.append(engine.submit(replace(one, id=f"{one.id}-{len(tickets)}")))
            until(lambda: busy(engine)[0] > 0)
            gate.let(passes)
            until(lambda: gate.allowed == 0)
        gate.let()
        for one, events in zip((LONG, LAST, SHORT, COLD), events_of(*tickets), strict=True):
            right(one, events)


def test_pictures_that_come_at_any_time_are_those_drawn_alone() -> None:
    draw_with_unequal_arrivals()


def test_pictures_of_one_kind_share_their_passes() -> None:
    requests = [replace(LONG, seeds=(seed,)) for seed in range(4)]
    with engine_loop(slots=4) as engine:
        gate = gate_of(engine)
        gate.shut()
        tickets = [engine.submit(one) for one in requests]
        until(lambda: len(engine._tickets) == 4)
        gate.let()
        for one, events in zip(requests, events_of(*tickets), strict=True):
            right(one, events)
        assert gate.passes <= 2 * GRID.cells  # alone they take GRID.cells - 1 each
        text = engine.metrics.text().decode()
    assert 'underpaint_tokens_per_pass{method="ar"} 1.0' in text
    assert 'underpaint_pictures_total{method="ar"} 4.0' in text


def leave_in_the_middle() -> None:
    """A client vanishes; another one's picture takes its slot while the third goes on."""
    with engine_loop(slots=2) as engine:
        gate = gate_of(engine)
        gate.shut()
        goes, stays = engine.submit(request(seeds=(5, 6, 7), method="ar")), engine.submit(replace(LONG, client="b"))
        until(lambda: busy(engine) == (2, 2))
        comes = engine.submit(replace(LAST, client="b"))
        gate.let(1)
        until(lambda: gate.allowed == 0)
        goes.cancel()
        until(lambda: len(engine._queue) == 1)
        gate.let(1)
        until(lambda: busy(engine) == (2, 0))
        assert not stays.closed
        assert len(engine.slots._running) == 1  # in the very slot
        gate.let()
        for one, events in zip((LONG, LAST), events_of(stays, comes), strict=True):
            right(one, events)
        until(lambda: busy(engine) == (0, 0))
        assert engine.metrics.cancelled._value.get() == 1


def test_a_client_that_vanishes_frees_its_slot_at_once() -> None:
    leave_in_the_middle()


def test_a_late_request_frees_its_slot() -> None:
    with engine_loop(slots=1) as engine:
        gate = gate_of(engine)
        gate.shut()
        late, waits = engine.submit(replace(LONG, seconds=30.0)), engine.submit(SHORT)
        until(lambda: busy(engine) == (1, 1))
        let_pass(late)
        gate.let()
        assert error_of(late).code == "deadline_exceeded"
        right(SHORT, events_of(waits)[0])


def started(engine: EngineLoop) -> list[tuple[str, int]]:
    """Method and seed of the pictures in the order in which they take slots; filled as they do."""
    order: list[tuple[str, int]] = []
    opened = engine.slots.open

    def noted(picture: Picture) -> None:
        order.append((picture.job.prepared.request.method, picture.job.seed))
        opened(picture)

    engine.slots.open = noted  # type: ignore[method-assign]
    return order


@pytest.mark.parametrize("programs", [1, 8])
def test_no_kind_of_request_waits_for_ever(monkeypatch: pytest.MonkeyPatch, programs: int) -> None:
    """A picture of another kind than all others is drawn in its turn, though theirs would fill every batch."""
    monkeypatch.setattr(device_slots, "MOST_PROGRAMS", programs)
    with engine_loop(slots=2) as engine:
        order, gate = started(engine), gate_of(engine)
        gate.shut()
        many = engine.submit(request(seeds=(0, 1, 2, 3), method="ar"))
        until(lambda: busy(engine) == (2, 2))
        other = engine.submit(replace(SHORT, client="b"))
        third = engine.submit(request(seeds=(4,), method="ar", client="c"))
        gate.let()
        right(SHORT, events_of(other, many, third)[0])
    assert order[:2] == [("ar", 0), ("ar", 1)]
    assert order[2:4] == [("speculative", 2), ("ar", 4)]  # each client in its turn, and none is overtaken
    assert order[4:] == [("ar", 2), ("ar", 3)]


def test_a_picture_whose_program_finds_no_place_is_not_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_slots, "MOST_PROGRAMS", 1)
    with engine_loop(slots=2) as engine:
        gate = gate_of(engine)
        gate.shut()
        requests = [replace(LONG, client="a"), replace(SHORT, client="b"), replace(LONG, client="c")]
        tickets = [engine.submit(one) for one in requests]
        until(lambda: busy(engine) == (1, 2))
        gate.let(2)
        until(lambda: gate.allowed == 0)
        assert busy(engine) == (1, 2)  # a slot is free, and both wait
        gate.let()
        for one, events in zip(requests, events_of(*tickets), strict=True):
            right(one, events)


@pytest.mark.parametrize("name", ["ar", "speculative", "eagle1"])
def test_events_are_those_of_the_reference(name: str) -> None:
    draw_request = request(OTHER, (2,), name, events=True, partial_images=1)
    with engine_loop(slots=1) as engine:
        ticket = engine.submit(draw_request)
        (events,) = events_of(ticket)
    job = Job(ticket, None, 0)  # type: ignore[arg-type]
    host = Picture(job, np.full(GRID.cells, NO_TOKEN, dtype=np.int64))
    cycles = reference(draw_request).cycles
    assert [one for one in events if isinstance(one, CellsEvent)] == [host.after_cycle(one) for one in cycles]
    (part,) = (one for one in events if isinstance(one, PartialImage))
    assert 2 * part.decided >= GRID.cells
    (last,) = (one for one in events if isinstance(one, FinishedImage))
    assert (last.target_passes, last.tokens) == (len(cycles), GRID.cells)
    assert last.accepted == sum(len(one.verdict.path) for one in cycles)
    assert last.drafted == sum(one.tree.depth for one in cycles[1:])


def test_cells_in_any_order_come_as_they_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_request = request(PROMPT, (1,), "zipar", events=True)
    narrow = {"zipar": ["window=1"]}
    monkeypatch.setattr(
        models, "resolve", lambda name, temperature, **_: resolve(name, temperature, settings=narrow.get(name, ()))
    )
    with engine_loop(slots=1) as engine:
        (events,) = events_of(engine.submit(draw_request))
    steps = [one for one in events if isinstance(one, CellsEvent)]
    cells = [cell for one in steps for cell, _ in one.drawn]
    assert sorted(cells) == list(range(GRID.cells))
    assert any(len(one.drawn) > 1 for one in steps)
    tokens = np.array([dict(pair for one in steps for pair in one.drawn)[cell] for cell in range(GRID.cells)])
    np.testing.assert_array_equal(pictures(events)[0], TablePipeline().picture(tokens))
    assert [one.number for one in steps] == sorted({one.number for one in steps})


def test_what_has_no_form_is_refused_before_it_waits() -> None:
    with engine_loop() as engine:
        with pytest.raises(RequestError, match="no form on the device; those that have one: ar, ") as refused:
            engine.submit(request(method="vvs"))
        assert (refused.value.status, refused.value.parameter) == (400, "method")


def test_a_program_that_fails_ends_its_own_pictures_alone() -> None:
    with engine_loop(slots=2) as engine:
        gate = gate_of(engine)
        gate.shut()
        broken, fine = engine.submit(SHORT), engine.submit(LONG)
        until(lambda: busy(engine) == (2, 0))

        def fails(poll: int = 8) -> list[Any]:
            raise RuntimeError("no such kernel")

        kind = next(one for one in engine.slots._running if one.kind.method == "speculative")
        kind.batch.step = fails  # type: ignore[method-assign]
        gate.let()
        assert error_of(broken).status == 500
        right(LONG, events_of(fine)[0])
        right(SHORT, events_of(engine.submit(SHORT))[0])


def test_memory_that_others_hold_is_waited_for_by_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_loop(slots=2) as engine:
        gate = gate_of(engine)
        gate.shut()
        first = engine.submit(LONG)
        until(lambda: busy(engine) == (1, 0))
        captured = TableDrawer.captured

        def full(self: TableDrawer, method: Any, sampling: SamplingParams) -> CapturedProgram:
            if any(one.pictures for one in engine.slots._running):
                raise DeviceError("this batch needs 9 GiB")
            return captured(self, method, sampling)

        monkeypatch.setattr(TableDrawer, "captured", full)
        refused = engine.submit(SHORT)
        gate.let(1)
        error = error_of(refused)
        assert (error.status, error.code, error.retry_after) == (503, "no_memory", 10)
        assert "GiB" not in str(error)
        gate.let()
        right(LONG, events_of(first)[0])
        right(SHORT, events_of(engine.submit(SHORT))[0])  # the other program is dropped for it


@pytest.mark.parametrize("lacking", [DeviceError, EngineError, torch.OutOfMemoryError])
def test_a_program_that_finds_no_memory_is_gone_before_the_next_try(
    monkeypatch: pytest.MonkeyPatch, lacking: type[Exception]
) -> None:
    tried, alive = list[ref[CapturedProgram]](), list[bool]()
    captured, open_batch = TableDrawer.captured, CapturedProgram.open_batch

    def noted(self: TableDrawer, method: Any, sampling: SamplingParams) -> CapturedProgram:
        alive.extend(one() is not None for one in tried)
        program = captured(self, method, sampling)
        tried.append(ref(program))
        return program

    def full(self: CapturedProgram, first: ImageTask) -> ContinuousBatch:
        if len(tried) == 1:
            raise lacking("this batch needs 9 GiB")
        return open_batch(self, first)

    with engine_loop() as engine:
        events_of(engine.submit(LONG))  # its program stays, and is dropped for the next one
        monkeypatch.setattr(TableDrawer, "captured", noted)
        monkeypatch.setattr(CapturedProgram, "open_batch", full)
        right(SHORT, events_of(engine.submit(SHORT))[0])
    assert alive == [False]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (DeviceError("this batch needs 9 GiB"), 503, "no_memory"),
        (EngineError("no engine for passes of 3 positions"), 500, "internal_error"),
    ],
)
def test_what_finds_no_memory_though_nothing_else_draws_is_told_by_its_status(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, status: int, code: str
) -> None:
    def full(self: TableDrawer, method: Any, sampling: SamplingParams) -> CapturedProgram:
        raise error

    monkeypatch.setattr(TableDrawer, "captured", full)
    with engine_loop() as engine:
        refused = error_of(engine.submit(LONG))
    assert (refused.status, refused.code, refused.retry_after) == (status, code, None)
    assert str(error) in caplog.text


def test_a_program_that_runs_out_of_memory_ends_its_own_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: ContinuousBatch, poll: int = 8) -> list[Any]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with engine_loop() as engine:
        with monkeypatch.context() as patch:
            patch.setattr(ContinuousBatch, "step", fails)
            error = error_of(engine.submit(LONG))
        assert (error.status, error.code) == (503, "no_memory")
        right(LONG, events_of(engine.submit(LONG))[0])


def test_a_picture_that_was_not_drawn_is_no_fault_of_its_client(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logits = TableForward.logits
    monkeypatch.setattr(TableForward, "logits", lambda self, features: logits(self, features) * float("nan"))
    with engine_loop() as engine:
        error = error_of(engine.submit(LONG))
    assert (error.status, error.code) == (500, "internal_error")
    assert "the picture was not drawn: its logits held NaN or infinity" in caplog.text


def test_a_kind_of_request_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = list[str]()

    def noted(pipeline: Any, methods: Any, *more: Any, remedy: str, **named: Any) -> Any:
        assert remedy == "lower --slots"
        plans.append(methods[0].name)
        return planned(pipeline, methods, *more, **named)

    monkeypatch.setattr(device_slots, "plan_drawing", noted)
    with engine_loop() as engine:
        plans.clear()
        events_of(*(engine.submit(one) for one in (LONG, SHORT, LONG, LAST, COLD)))
        assert plans == ["ar", "speculative", "ar"]
        monkeypatch.setattr(device_slots, "_MOST_KINDS", 1)
        slots: Any = engine.slots
        slots.check(engine.models.prepare(request(method="eagle2")))
        assert len(slots._plans) == 3


@pytest.mark.parametrize("chooses", [False, True])
def test_a_program_that_its_policy_chooses_draws_no_picture_before_the_first(
    monkeypatch: pytest.MonkeyPatch, chooses: bool
) -> None:
    primed = list[int]()
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(DeviceRunner, "chooses", property(lambda self: chooses))
    pipeline = TablePipeline()
    drawer = TableDrawer(pipeline, 1, TableModels(Gate()), cuda=True)
    program = drawer.captured(build_method("ar", resolve("ar", 1.0), pipeline.tables), SamplingParams(guidance=2.0))
    monkeypatch.setattr(program, "prime", lambda tasks: primed.append(len(tasks)))
    program._runner.begin = lambda *_: primed.append(0)  # type: ignore[method-assign]
    assert program.open_batch(ImageTask(pipeline.condition(PROMPT), 3)).room == 1
    assert primed == ([0] if chooses else [1])


def draw_after_a_trial(monkeypatch: pytest.MonkeyPatch, slow: str, faster: str) -> None:
    """Ten pictures in two slots, of which eight decide that `faster` draws three more: `slow` takes a minute longer."""
    step = device_slots._Running.step

    def slowed(self: Any) -> Any:
        self._seconds += 60.0 * (self.kind.method == slow)
        return step(self)

    monkeypatch.setattr(device_slots._Running, "step", slowed)
    with engine_loop(slots=2, draft_if_faster=True) as engine:
        by = list[str]()
        for seeds in ((*range(10),), (10, 11, 12)):
            asked = request(OTHER, seeds, "speculative", events=True)
            (events,) = events_of(engine.submit(asked))
            finished = sorted((one for one in events if isinstance(one, FinishedImage)), key=lambda one: one.image)
            for one in finished:
                drawn_as = replace(asked, method=one.method, seeds=(one.seed,))
                assert one.target_passes == len(reference(drawn_as).cycles)
            by += [one.method for one in finished]
        assert by[:8] == ["speculative"] * 4 + ["ar"] * 4
        assert set(by[8:10]) <= {"ar", faster}, "plain decoding goes on until both have drawn theirs"
        assert by[10:] == [faster] * 3
        text = engine.metrics.text().decode()
        assert f'underpaint_pictures_total{{method="ar"}} {by.count("ar")}.0' in text


@pytest.mark.parametrize(("slow", "faster"), [("speculative", "ar"), ("ar", "speculative")])
def test_after_a_trial_the_faster_of_drafting_and_plain_decoding_draws(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slow: str, faster: str
) -> None:
    with caplog.at_level("INFO", "underpaint.serve"):
        draw_after_a_trial(monkeypatch, slow, faster)
    (line,) = (one.message for one in caplog.records if "per picture" in one.message)
    assert line.endswith(f"the other pictures are drawn by {faster}")


@pytest.mark.parametrize("batch", [1, 2])
def test_every_picture_has_its_share_of_the_devices_time(batch: int) -> None:
    pipeline = TablePipeline()
    drawer = TableDrawer(pipeline, batch, TableModels(Gate()))
    program = drawer.captured(build_method("ar", resolve("ar", 1.0), pipeline.tables), SamplingParams(guidance=2.0))
    tasks = [ImageTask(pipeline.condition(PROMPT), seed) for seed in range(4)]
    if batch > 1:
        program.prime(tasks[:batch])  # what a picture needs to enter a free slot is ready then
    drawings = [drawing for _, drawing in program.draw_all(tasks)]
    assert len(drawings) == 4
    assert all(isinstance(one, Drawing) and 0.0 < (one.device_seconds or 0.0) <= one.seconds for one in drawings)


def test_requests_without_a_trial_are_drawn_as_asked() -> None:
    with engine_loop(slots=2, draft_if_faster=True) as engine:
        for name in ("lantern", "ar"):
            (events,) = events_of(engine.submit(request(OTHER, (*range(6),), name)))
            assert [one.method for one in events if isinstance(one, FinishedImage)] == [name] * 6


def test_pictures_of_a_client_that_leaves_do_not_end_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_loop(slots=2, draft_if_faster=True) as engine:
        gate = gate_of(engine)
        gate.shut()
        goes = engine.submit(request(OTHER, (20, 21), "speculative"))
        until(lambda: busy(engine) == (2, 0))
        goes.cancel()
        gate.let(4)
        until(lambda: busy(engine) == (0, 0))
        gate.let()
        (events,) = events_of(engine.submit(request(OTHER, (*range(5),), "speculative")))
        methods = {one.seed: one.method for one in events if isinstance(one, FinishedImage)}
    assert methods == {**dict.fromkeys(range(4), "speculative"), 4: "ar"}


def test_mutant_the_slower_draws_on(monkeypatch: pytest.MonkeyPatch) -> None:
    means: Any = DraftTrial.means
    monkeypatch.setattr(DraftTrial, "means", property(lambda self: means.fget(self)[::-1]))
    with pytest.raises(AssertionError):
        draw_after_a_trial(monkeypatch, "ar", "speculative")


def test_mutant_a_slot_that_a_client_leaves_is_not_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    for waiting in (test_scheduling, served):
        monkeypatch.setattr(waiting, "SECONDS", 3.0)
    monkeypatch.setattr(ContinuousBatch, "remove", lambda self, number: None)
    with pytest.raises(AssertionError):
        leave_in_the_middle()


def test_mutant_noise_depends_on_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = DeviceRunner.fill
    monkeypatch.setattr(
        DeviceRunner, "fill", lambda self, slot, one: fill(self, slot, one._replace(seed=one.seed + 9 * slot))
    )
    with pytest.raises(AssertionError):
        draw_with_unequal_arrivals()


def test_mutant_kinds_that_differ_in_temperature_share_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    of = Kind.of
    monkeypatch.setattr(Kind, "of", lambda prepared: of(prepared)._replace(sampling=SamplingParams()))
    with pytest.raises(AssertionError):
        draw_with_unequal_arrivals()
