"""MuLo-SD on the host and on the device: one repair, pass by pass, and whole decodes by a tiny pair of models."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from tests.runtime.device.test_fronts import ModelGrid, Watched
from tests.runtime.device.test_kernels import CONFIG, model_of, whole
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.chance import Chance, sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.canvas import Canvas
from underpaint.algos.spatial.cell_rule import PooledCells, cell_rule
from underpaint.algos.spatial.mulo import Repair, RepairCycle, RowDraft, draft_and_repair, verify_and_repair
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.algos.spatial.target import Feed
from underpaint.algos.spatial.zipar import chooser
from underpaint.models.sampler import SamplerConfig, TokenSampler
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.folder import EmbeddedBatch
from underpaint.runtime.device.kernels import islands as kernels
from underpaint.runtime.device.kernels import repair as passes
from underpaint.runtime.device.kernels.fronts import FrontPass, advance_fronts
from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.walk import Verdicts
from underpaint.runtime.device.low_models import LowDraft
from underpaint.runtime.device.runner import DeviceRunner
from underpaint.runtime.methods.multi_scale import device as cycles
from underpaint.runtime.methods.multi_scale.low_rows import LowRows
from underpaint.runtime.resampling.resampler import TokenResampler

PREFIX = 3
V = CONFIG.vocab_size
CPU = torch.device("cpu")


@dataclass
class Refuses:
    """A `CellRule` that refuses the cells of a mask, and redraws them from the whole distribution."""

    cells: BoolArray

    def judge(
        self, cells: IntArray, tokens: IntArray, drafted: FloatArray | None, probs: FloatArray, chance: Chance
    ) -> Iterator[bool]:
        yield from (not self.cells.reshape(-1)[cell] for cell in cells.tolist())

    def residual(self, cell: int, token: int, drafted: FloatArray | None, distribution: FloatArray) -> FloatArray:
        return distribution


@dataclass(frozen=True)
class Repaired:
    """One repair on the host. feeds: of its passes, verification left out; kept: what each committed."""

    cycle: RepairCycle
    feeds: list[Feed]
    kept: list[list[int]]


def by_host(rejected: BoolArray, repair: Repair) -> Repaired:
    """A draft whose tokens are its cells mod 7, of which the cells `rejected` [H, W] are refused."""
    grid = Grid(*rejected.shape)
    target, chance = Watched(grid), sampling(3, 1)
    canvas, draft = Canvas.begin(target), RowDraft(np.arange(grid.cells) % target.vocab_size)
    choose = chooser(chance, adaptive=False)
    cycle = verify_and_repair(canvas, range(grid.height), draft, Refuses(rejected), repair, choose, chance)
    return Repaired(cycle, target.feeds[1:], target.kept[1:])


class OnDevice:
    """One repair of a batch by the device's kernels, whose draws are told by the host's image."""

    def __init__(self, rejected: Sequence[BoolArray], repair: Repair, positions: int) -> None:
        self.grid, self.batch = Grid(*rejected[0].shape), len(rejected)
        self.window, count, cells = repair.front_window(self.grid), self.batch, self.grid.cells
        none, slots = torch.zeros(count, dtype=torch.int64), PREFIX + cells
        small = (torch.full((count, cells), 5, dtype=torch.int32) for _ in range(3))
        drafts = (torch.arange(cells) % 7).repeat(count, 1)
        refused = torch.from_numpy(np.stack(rejected)).to(torch.int32).view(count, -1)
        self.islands = kernels.IslandBuffers(drafts, refused, *small, none.clone(), none + 4)
        wide = (torch.full((count, positions), 9, dtype=torch.int64) for _ in range(6))
        filled = torch.zeros(count, slots, dtype=torch.int32)
        filled[:, :PREFIX] = 1
        self.out = FrontPass(*wide, none.clone(), filled)
        decided = torch.full((count, cells), 8, dtype=torch.int64)
        self.progress = Progress(
            none.clone(), none + 1, none, none + PREFIX, none, none, decided, torch.zeros(count, cells, 3)
        )
        finite = torch.ones(count, positions + 1, dtype=torch.int32)
        self.verdicts = Verdicts(none, none, none, none.clone(), finite)
        behind = torch.arange(2.0 * count * cells).view(count, cells, 2)
        self.known = kernels.StartRows(-behind[:, :1], none, torch.full((count, 1, 2), 0.5))
        status, filled = self.verdicts.status, self.out.filled
        kernels.mark(self.islands, self.progress, status, none, filled, behind, self.known, self.grid, repair)
        self.rows = torch.cat([self.known.features, behind], dim=1)

    def lay(self) -> None:
        status = self.verdicts.status
        passes.find_ready(status, self.islands, self.grid, self.window)
        passes.lay_repair(status, self.progress, self.islands, self.out)

    def advance(self, images: Sequence[IntArray]) -> None:
        for place, image in enumerate(images):
            settled = self.out.settled[place][self.out.settled[place] >= 0]
            self.progress.decided[place, settled] = torch.from_numpy(image)[settled]
        advance_fronts(self.out, self.progress, self.verdicts)

    def lanes(self, image: int) -> list[tuple[int, int, list[int], int, int]]:
        """Of each position that feeds or settles: its cell, its token, the cells it sees beside itself, where its keys
        go, and what it settles."""
        one = FrontPass(*(part[image].numpy() for part in self.out))
        keeps = np.flatnonzero(one.places >= 0)
        filled = np.flatnonzero(one.filled[PREFIX : one.extents])
        lanes = []
        for lane in np.flatnonzero((one.places >= 0) | (one.settled >= 0)).tolist():
            fresh = {int(one.positions[other]) for other in keeps if other != lane and one.masks[lane] >> other & 1}
            past = set(filled[filled < one.bounds[lane] - PREFIX].tolist())
            where = int(one.places[lane]) - PREFIX if one.places[lane] >= 0 else -1
            lanes.append(
                (int(one.positions[lane]), int(one.tokens[lane]), sorted(fresh | past), where, int(one.settled[lane]))
            )
        return lanes


def repairs_agree(rejected: Sequence[BoolArray], repair: Repair, positions: int) -> bool:
    """Whether the device marks, labels and redraws a batch as the host does its images, step by step."""
    hosts, device = [by_host(one, repair) for one in rejected], OnDevice(rejected, repair, positions)
    for image, host in enumerate(hosts):
        labels = device.islands.labels[image].numpy()
        numbers = {label: place for place, label in enumerate(sorted(set(labels.tolist()) - {-1}))}
        island_numbers = [numbers.get(label, -1) for label in labels.tolist()]
        first = int(np.argmax(host.cycle.rejected)) if host.cycle.rejected.any() else device.grid.cells
        if island_numbers != host.cycle.islands.reshape(-1).tolist() or int(device.islands.first[image]) != first:
            return False
        if (labels >= 0).tolist() != host.cycle.region.reshape(-1).tolist():
            return False
        if first < device.grid.cells and not torch.equal(device.known.preceding[image, 0], device.rows[image, first]):
            return False
    going = [[iter(host.cycle.steps), iter(zip(host.feeds, host.kept, strict=True))] for host in hosts]
    step_lanes: list[list[tuple[int, int, list[int], int, int]]] = [[] for _ in hosts]
    for _ in range(4 * device.grid.cells):
        if bool((device.verdicts.status > 0).all()):
            break
        device.lay()
        for image, host in enumerate(hosts):
            step_lanes[image] += device.lanes(image)
            if step_lanes[image] and int(device.islands.cursor[image]) == 0:
                if not _step_agrees(step_lanes[image], host, *going[image], int(device.islands.first[image])):
                    return False
                step_lanes[image] = []
        device.advance([host.cycle.tokens.reshape(-1) for host in hosts])
    ended = device.verdicts.status.tolist() == [1] * len(hosts)
    done = all(next(steps, None) is None for steps, _ in going)
    tokens = [host.cycle.tokens.reshape(-1).tolist() for host in hosts]
    return ended and done and device.progress.decided.tolist() == tokens


def _step_agrees(
    lanes: list[tuple[int, int, list[int], int, int]],
    host: Repaired,
    steps: Iterator[tuple[int, ...]],
    feeds: Iterator[tuple[Feed, list[int]]],
    first: int,
) -> bool:
    settled = tuple(lane[4] for lane in lanes if lane[4] >= 0)
    if settled != next(steps, None):
        return False
    lanes = [lane for lane in lanes if lane[4] != first]  # its distribution is known
    if not lanes:
        return True
    feed, committed_cells = next(feeds)
    expected = []
    for place, (cell, token) in enumerate(zip(feed.cells.tolist(), feed.tokens.tolist(), strict=True)):
        seen = set(feed.cells[feed.visible[place]].tolist()) - {cell} | set(np.flatnonzero(feed.cached[place]).tolist())
        expected.append((cell, token, sorted(seen), cell if cell in committed_cells else -1))
    return [lane[:4] for lane in lanes] == expected


HIGH, LOW = Grid(4, 4), Grid(2, 2)
CONDITIONS = torch.tensor([[12, 13, 14], [13, 11, 12], [14, 14, 11]])
NEAR = nearest_codes(np.random.default_rng(3).standard_normal((V, 2)), 3)


@cache
def models() -> tuple[torch.nn.Module, torch.nn.Module, TokenSampler]:
    """The large target, the small one, and what enlarges."""
    high, low = (model_of(replace(CONFIG, grid_side=grid.height)) for grid in (HIGH, LOW))
    torch.manual_seed(4)
    sampler = TokenSampler(SamplerConfig("up", V, width=8, low_blocks=1, high_blocks=1))
    return high, low, sampler.eval()


def repaired_on_host(repair: Repair, tau: float, draft_window: int, temperature: float, image: int) -> list[int]:
    """One image alone, by the host's loop, as `MuloSession` runs it."""
    high, low, enlarge = models()
    sampler = SamplingParams(temperature=temperature, top_k=6)
    cold = replace(repair, greedy=temperature == 0)
    judged = replace(sampler, temperature=1.0) if cold.greedy else sampler
    with torch.no_grad():
        conditions = [one.embed(CONDITIONS, None)[image : image + 1] for one in (high, low)]

    def network(tokens: IntArray) -> FloatArray:
        with torch.no_grad():
            logits: FloatArray = enlarge(torch.from_numpy(tokens)[None])[0].numpy()
        return logits

    drafting = ModelGrid(low, conditions[1], sampler, LOW)
    drafter = LowRows(drafting, TokenResampler(ResolutionMap(LOW, HIGH), V, network, network), draft_window)
    rule = cell_rule("pooled", NEAR, tau, 0.3, cold.greedy)
    target = ModelGrid(high, conditions[0], judged, HIGH)
    return draft_and_repair(target, drafter, rule, cold, HIGH.height, sampling(5, image)).tokens.tolist()


def method_of(repair: Repair, tau: float, draft_window: int, temperature: float) -> cycles.RepairForm:
    sampler, greedy = SamplingParams(temperature=temperature, top_k=6), temperature == 0
    judged = replace(sampler, temperature=1.0) if greedy else sampler
    rule = PooledCells(NEAR, tau)
    return cycles.RepairForm(rule.neighbours, rule.tau, replace(repair, greedy=greedy), draft_window, judged, sampler)


class Spoilt(DecoderForward):
    """A decoder whose keys, values and logits are not numbers for the images of `spoilt`."""

    spoilt: Sequence[int] = ()

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        embeddings = super().embed(tokens)
        for image in self.spoilt:
            embeddings[image] = float("nan")
        return embeddings


def drafting() -> LowDraft:
    _, low, enlarge = models()
    return LowDraft(Spoilt(low, 1), enlarge, LOW, PREFIX)


def cycle_of(how: cycles.RepairForm, batch: int, positions: int | None = None) -> cycles.IslandCycle:
    return cycles.IslandCycle(Spoilt(models()[0], 1), drafting(), how, HIGH, PREFIX, batch, CPU, positions)


@torch.no_grad()
def conditions_of(images: Sequence[int]) -> tuple[torch.Tensor, EmbeddedBatch]:
    high, low = (one.embed(CONDITIONS[list(images)], None) for one in models()[:2])
    return high, EmbeddedBatch(low, torch.zeros(len(low), dtype=torch.int64))


@torch.no_grad()
def begin(cycle: cycles.IslandCycle, images: Sequence[int]) -> None:
    condition, low = conditions_of(images)
    cycle.begin(condition, whole(*(5 for _ in images)), whole(*images), low=low)


@torch.no_grad()
def draft(cycle: cycles.IslandCycle) -> None:
    """Run the stages before the repair."""
    for run, times in cycle.stages[:2]:
        for _ in range(times or 0):
            run()


@torch.no_grad()
def finish(cycle: cycles.IslandCycle) -> list[list[int]]:
    """Run every stage to its end; the images' tokens."""
    draft(cycle)
    while not bool((cycle.state.verdicts.status > 0).all()):
        cycle.run()
    return cycle.state.progress.decided.tolist()


def repaired_on_device(how: cycles.RepairForm, images: Sequence[int]) -> list[list[int]]:
    """As `DeviceRunner` draws a batch."""
    runner = DeviceRunner(DecoderForward(models()[0], 1), None, how, HIGH, PREFIX, len(images), CPU, low=drafting())
    condition, low = conditions_of(images)
    runner.begin(condition, [5] * len(images), images, low=low)
    decoded_images = runner.finish(len(images))
    assert [one.error for one in decoded_images] == [None] * len(images)
    return [one.tokens.tolist() for one in decoded_images]
