"""Records of methods in `underpaint trace`: rows drafted by smaller models, and pictures that a replay cannot draw."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from underpaint.algos.arrays import IntArray
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.conditions import Condition
from underpaint.runtime.drawing import CountedDrawing, draw_counted, noise_of
from underpaint.runtime.methods.method import DecodingMethod, ModelTables
from underpaint.runtime.methods.multi_scale.sessions import MuloSession
from underpaint.runtime.methods.registry import MethodConfig, build_method, resolve
from underpaint.runtime.models import OpenModels
from underpaint.sim.replay.drawn_trace import DrawnRecorder, DrawnTrace
from underpaint.sim.replay.predict import PLAIN, not_replayed
from underpaint.sim.replay.row_trace import RowRecorder, RowTrace

Recorder = TypeVar("Recorder", RowRecorder, DrawnRecorder)


class MethodRecorders:
    """Records the methods of a trace, picture by picture."""

    def __init__(
        self,
        pipeline: OpenModels,
        tables: ModelTables,
        sampling: SamplingParams,
        configs: Sequence[tuple[str, MethodConfig]],
        required: int,
        keep: int,
        seed: int,
        condition: Condition,
    ) -> None:
        """Find what must be recorded for each method, and open each method once.

        Args:
            pipeline: The models.
            tables: The models' tables, with pass costs if a method chooses by them.
            sampling: The sampling settings of the trace.
            configs: The methods by name; one may come at several presets.
            required: How many of the first methods must fit. Those of another preset may lack their models.
            keep: See `RowRecorder`.
            seed: Seed of the noise.
            condition: The condition of one picture, to open the methods with.

        Raises:
            ValueError: A required method does not fit the models.
        """
        self._pipeline, self._sampling, self._seed = pipeline, sampling, seed
        self._plain = build_method(PLAIN, resolve(PLAIN, sampling.temperature), tables)
        first = configs[:required]
        rows, drawn = _drafted_low(configs, tables, keep), _not_replayed(configs, tables)
        self._rows = self._that_open(rows, len(_drafted_low(first, tables, keep)), condition)
        self._drawn = self._that_open(drawn, len(_not_replayed(first, tables)), condition)

    def _that_open(
        self, methods: Iterable[tuple[DecodingMethod, Recorder]], required: int, condition: Condition
    ) -> list[tuple[DecodingMethod, Recorder]]:
        fitting = []
        for place, (method, recorder) in enumerate(methods):
            try:
                method.open(self._pipeline, condition, self._sampling)
            except ValueError:
                if place < required:
                    raise
                continue
            fitting.append((method, recorder))
        return fitting

    def add(self, condition: Condition, image: IntArray) -> None:
        """Record a picture: the rows drafted along the tokens `image` [C] of plain AR, and drawings of its prompt."""
        for method, rows in self._rows:
            session = method.open(self._pipeline, condition, self._sampling)
            assert isinstance(session, MuloSession)
            noise = noise_of(condition, self._seed)
            rows.add(session.target, session.drafter, image, session.rows_per_cycle, noise)
        plain = self._draw(self._plain, condition).host_seconds if self._drawn else 1.0
        for method, drawings in self._drawn:
            one = self._draw(method, condition)
            drawings.add(one.drawing.depths, one.target, one.drafter, one.host_seconds / plain)

    def _draw(self, method: DecodingMethod, condition: Condition) -> CountedDrawing:
        session = method.open(self._pipeline, condition, self._sampling)
        return draw_counted(session, method.name, condition, self._seed)

    def traces(self) -> tuple[list[RowTrace], list[DrawnTrace]]:
        """Return the recorded rows and drawings."""
        return [rows.trace() for _, rows in self._rows], [drawings.trace() for _, drawings in self._drawn]


def _drafted_low(
    configs: Sequence[tuple[str, MethodConfig]], tables: ModelTables, keep: int
) -> list[tuple[DecodingMethod, RowRecorder]]:
    """Return the first method of each way to draft rows at low resolution, with its recorder."""
    ways: dict[tuple[object, ...], tuple[DecodingMethod, RowRecorder]] = {}
    for name, config in configs:
        method = build_method(name, config, tables)
        if method.drafts_rows:
            rows = RowRecorder(config.to_dict()["settings"], keep)
            ways.setdefault(tuple(rows.settings.values()), (method, rows))
    return list(ways.values())


def _not_replayed(
    configs: Sequence[tuple[str, MethodConfig]], tables: ModelTables
) -> list[tuple[DecodingMethod, DrawnRecorder]]:
    """Return the methods that a replay cannot draw, once per setting, with their recorders."""
    once: dict[str, tuple[DecodingMethod, DrawnRecorder]] = {}
    for name, config in configs:
        if not_replayed(config.to_dict()):
            method = build_method(name, config, tables)
            recipe = method.config.to_dict()
            once.setdefault(repr(recipe), (method, DrawnRecorder(recipe)))
    return list(once.values())
