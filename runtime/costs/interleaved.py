"""A full cost curve, measured in pieces between the drawings of a run, so that both cover the same minutes.

A machine's speed changes within an hour. With a curve from a few minutes before the drawings, the speedups of protocol
1 were predicted 19 % too low in the median.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.cost_curve import IN_CYCLE, IN_GRID, CostCurveFile, parse_cost_curve
from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.run_log import RunLog
from underpaint.runtime.costs import in_cycle, in_grid, passes, samples
from underpaint.runtime.costs.machine_curve import all_loops_of, conditions_of, header_of, low_targets, passes_alone
from underpaint.runtime.costs.samples import CycleSamples, at_mean_speed
from underpaint.runtime.evaluation.machine import describe_machine, typed_command

if TYPE_CHECKING:
    from underpaint.runtime.models import OpenModels

SHARE: Final = 0.2
"""Share of a run's time that the pieces take."""
PIECES: Final = "costs.jsonl"
CURVE: Final = "costs.json"
Job = TypeVar("Job")
Done = TypeVar("Done")


class InterleavedCurve:
    """A full cost curve of opened models, measured piece by piece.

    A round has one piece for each group of decoding loops, with plain autoregression, and one for passes over grid
    cells. Before each piece, every pass is repeated alone once. Pieces are lines of `costs.jsonl` in the run's folder,
    so that an interrupted run keeps them; pieces of another machine, other models or other loops are replaced.
    """

    def __init__(self, models: OpenModels, sampling: SamplingParams, first: CostCurveFile, folder: Path) -> None:
        """Read the pieces in `folder`, and measure nothing yet.

        Args:
            models: The models, with a drafter.
            sampling: Sampling parameters of the target and the drafter while they are timed.
            first: A curve of these models, for loops that choose by costs.
            folder: The folder of the run.

        Raises:
            ValueError: The file of pieces was edited.
        """
        self._models, self._sampling, self._folder = models, sampling, folder
        self._header = json.loads(json.dumps(header_of(models, sampling, full=True)))
        target, drafter = models.high, models.loaded_drafter
        assert drafter is not None
        self._target, self._drafter = target, drafter
        verify, draft = ([list(pair) for pair in pairs] for pairs in (first.verify_ms, first.draft_ms))
        self._groups = in_cycle.grouped(all_loops_of(target, drafter, verify, draft))
        self._first_line = {**self._header, "loops": [[loop.family for loop in group] for group in self._groups]}
        self._log = RunLog(folder / PIECES)
        head, *self._pieces = self._log.read() or [{}]
        if head != self._first_line:
            self._log, self._pieces = RunLog(folder / PIECES), []
        self._owed = 0.0

    @property
    def pieces_in_a_round(self) -> int:
        """Number of pieces in a round: the groups of loops, and the passes over cells."""
        return len(self._groups) + 1

    @property
    def pieces(self) -> int:
        """Number of pieces measured so far."""
        return len(self._pieces)

    def between(self, draw: Callable[[Job], Done]) -> Callable[[Job], Done]:
        """`draw`, with pieces measured before drawings so that they take the share `SHARE` of the time."""

        def drawn(job: Job) -> Done:
            while self._owed > 0.0:
                self._owed -= self.measure_piece()
            started = perf_counter()
            done = draw(job)
            self._owed += SHARE / (1.0 - SHARE) * (perf_counter() - started)
            return done

        return drawn

    def measure_piece(self) -> float:
        """Measure and store the next piece; returns the seconds that it took."""
        started = perf_counter()
        before = self._target.params
        self._target.sample_by(self._sampling)
        self._drafter.sample_by(self._sampling)
        piece = self._next_piece()
        self._target.sample_by(before)
        self._drafter.sample_by(before)
        seconds = perf_counter() - started
        piece["seconds"] = round(seconds, 3)
        if self._log.empty:
            self._log.append(self._first_line)
        self._log.append(piece)
        self._pieces.append(piece)
        return seconds

    def _next_piece(self) -> dict[str, Any]:
        turn, place = divmod(self.pieces, self.pieces_in_a_round)
        pass_samples = passes.one_round(self._target, self._drafter, passes.halfway(self._target))
        piece: dict[str, Any] = {"passes": [{str(size): one for size, one in some.items()} for some in pass_samples]}
        conditions = conditions_of(self._models)
        condition = conditions[turn % len(conditions)]
        if place < len(self._groups):
            self._target.prepare(condition)
            timed, _ = in_cycle.burst(self._target, self._drafter, self._groups[place], turn + 1)
            return {**piece, IN_CYCLE: timed.to_dict()}
        return {**piece, IN_GRID: in_grid.burst(self._target, self._low(), condition, turn + 1).to_dict()}

    def _low(self) -> list[in_grid.LowTarget]:
        return low_targets(self._models.folder_models(), self._sampling)

    def finish(self) -> CostCurveFile | None:
        """The curve of all pieces, also written to `costs.json`; None before the first full round."""
        rounds = self.pieces // self.pieces_in_a_round
        if not rounds:
            return None
        verify, draft = (self._sizes(part) for part in (0, 1))
        cycles = at_mean_speed(self._bursts(IN_CYCLE))
        plain_ms = cycles.plain_ms
        cells = at_mean_speed(self._bursts(IN_GRID), plain_ms)
        alone = passes_alone(verify, draft)
        curve = {
            **self._header,
            **alone,
            IN_CYCLE: samples.to_dict(cycles, rounds, alone),
            IN_GRID: in_grid.to_dict(cells, self._low(), self._target.grid, rounds, alone["verify_ms"]),
            "seconds": round(sum(piece["seconds"] for piece in self._pieces), 2),
            "machine": describe_machine(),
            "command": typed_command(),
        }
        path = self._folder / CURVE
        content = (json.dumps(curve) + "\n").encode()
        finished = parse_cost_curve(content, path)
        write_beside(path, content)
        return finished

    def _bursts(self, kind: str) -> list[CycleSamples]:
        return [CycleSamples.from_dict(piece[kind]) for piece in self._pieces if kind in piece]

    def _sizes(self, part: int) -> passes.BySize:
        pass_samples: list[Mapping[str, Any]] = [piece["passes"][part] for piece in self._pieces if "passes" in piece]
        return {int(size): [passes.PassSample(*one[size]) for one in pass_samples] for size in pass_samples[0]}
