"""Converts a replay to frames: the change of the picture in each step, marks on the grid, and a description."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from underpaint.algos.protocols import Grid
from underpaint.runtime.evaluation.replay import FrontEvent, RepairEvent, Replay, TreeEvent


class Put(NamedTuple):
    """Cells that show a layer's picture from this frame on."""

    layer: int
    cells: tuple[int, ...]


class DraftView(NamedTuple):
    """The draft tree of a frame; see `TreeEvent`."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    path: tuple[int, ...]
    extra: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One step of a replay.

    Attributes:
        text: A description.
        puts: The cells that change in the picture.
        marks: Cells by kind: "kept" (an accepted draft), "refused", "drawn" (by the target), "region" (to be redrawn).
        guesses: Drafted (cell, code) pairs that are not in the picture.
        islands: Groups of cells that are redrawn in parallel.
        tree: The draft tree; None if none was drafted.
    """

    text: str
    puts: tuple[Put, ...]
    marks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    guesses: tuple[tuple[int, int], ...] = ()
    islands: tuple[tuple[int, ...], ...] = ()
    tree: DraftView | None = None

    def to_dict(self) -> dict[str, Any]:
        """The frame for the page's script, without empty fields."""
        plain: dict[str, Any] = {"text": self.text, "puts": [[put.layer, list(put.cells)] for put in self.puts]}
        for name, value in (("marks", self.marks), ("guesses", self.guesses), ("islands", self.islands)):
            if value:
                plain[name] = value
        if self.tree is not None:
            plain["tree"] = self.tree._asdict()
        return plain


class ReplayFrames(NamedTuple):
    """The frames of a replay, with the pictures that they show.

    Attributes:
        layers: Tokens [cells] of the pictures whose parts the frames show; the first is the final picture.
        frames: The frames in order.
    """

    layers: tuple[tuple[int, ...], ...]
    frames: tuple[Frame, ...]

    def codes(self) -> set[int]:
        """The codes that are shown alone: those of draft trees and of guesses."""
        trees = {code for frame in self.frames if frame.tree for code in (*frame.tree.tokens, frame.tree.extra)}
        return {code for code in trees | {code for frame in self.frames for _, code in frame.guesses} if code >= 0}


def frames_of(replay: Replay, grid: Grid) -> ReplayFrames:
    """The frames of a replay on `grid`."""
    layers = [replay.tokens]
    frames: list[Frame] = []
    for turn, event in enumerate(replay.events):
        head = f"{turn + 1} of {len(replay.events)}"
        if isinstance(event, TreeEvent):
            frames.append(_tree_frame(event, f"Cycle {head}", grid))
        elif isinstance(event, FrontEvent):
            many = f"{len(event.cells)} cells decided side by side"
            what = many if len(event.cells) > 1 else "one cell decided"
            text = f"Step {head}: {what}, from {_place(event.cells[0], grid)}."
            frames.append(Frame(text, (Put(0, event.cells),), {"drawn": event.cells}))
        else:
            layers.append(_drafted(event, replay.tokens, grid))
            frames.extend(_repair_frames(event, len(layers) - 1, f"Cycle {head}", grid))
    return ReplayFrames(tuple(layers), tuple(frames))


def _tree_frame(event: TreeEvent, head: str, grid: Grid) -> Frame:
    depths = [0]
    for parent in event.parents[1:]:
        depths.append(depths[parent] + 1)
    drafted, depth, accepted = len(event.tokens) - 1, max(depths), len(event.path)
    kept_cells = tuple(range(event.cell, event.cell + accepted))
    last = event.cell + accepted
    beyond = tuple(range(last + 1, event.cell + depth))
    firsts = {level: depths.index(level) for level in range(1, depth + 1)}
    guesses = tuple((cell, event.tokens[firsts[cell - event.cell + 1]]) for cell in beyond)
    where = f"{head}, {_place(event.cell, grid)}"
    if not drafted:
        why = "the condition alone" if event.tokens[0] < 0 else "nothing drafted"
        text = f"{where}: {why}; the target draws one token."
    else:
        text = (
            f"{where}: {_count(drafted, 'token')} drafted in {_count(depth, 'level')}, {accepted} accepted, "
            f"{drafted - accepted} refused; the target draws one more."
        )
    view = DraftView(event.tokens, event.parents, event.path, event.extra) if drafted else None
    marks = {"kept": kept_cells, "drawn": (last,), "refused": beyond}
    return Frame(
        text, (Put(0, (*kept_cells, last)),), {name: cells for name, cells in marks.items() if cells}, guesses, (), view
    )


def _repair_frames(event: RepairEvent, layer: int, head: str, grid: Grid) -> Iterator[Frame]:
    cells = tuple(range(event.first, event.stop))
    rows = f"rows {event.first // grid.width + 1} to {event.stop // grid.width}"
    yield Frame(f"{head}: {rows} drafted at the low resolution, {_count(len(cells), 'cell')}.", (Put(layer, cells),))
    region = tuple(sorted(cell for island in event.islands for cell in island))
    islands = _count(len(event.islands), "island")
    text = f"{head}: verified in one pass. {_count(len(event.rejected), 'cell')} refused"
    text += f"; {len(region)} to redraw, in {islands}." if region else "; the draft stays whole."
    yield Frame(text, (), {"refused": event.rejected, "region": region}, islands=event.islands)
    number = {cell: turn + 1 for turn, island in enumerate(event.islands) for cell in island}
    cells_left = set(region)
    for turn, step in enumerate(event.steps):
        cells_left -= set(step)
        inside = sorted({number[cell] for cell in step if cell in number})
        named = f"island{'' if len(inside) == 1 else 's'} {', '.join(map(str, inside))}"
        text = f"{head}, repair step {turn + 1} of {len(event.steps)}: {_count(len(step), 'cell')} redrawn in {named}."
        marks = {"drawn": step, "region": tuple(sorted(cells_left))}
        yield Frame(
            text, (Put(0, step),), {name: marked for name, marked in marks.items() if marked}, islands=event.islands
        )
    kept_cells = tuple(cell for cell in cells if cell not in number)
    text = f"{head}: {rows} done. {len(kept_cells)} of {len(cells)} cells hold their draft."
    yield Frame(text, (Put(0, cells),), {"kept": kept_cells})


def _drafted(event: RepairEvent, tokens: Sequence[int], grid: Grid) -> tuple[int, ...]:
    """The tokens of the whole picture as drafted: earlier rows, the draft, and its last row repeated below it."""
    below = (len(tokens) - event.stop) // grid.width
    return (*tokens[: event.first], *event.draft, *event.draft[-grid.width :] * below)


def _place(cell: int, grid: Grid) -> str:
    return f"row {cell // grid.width + 1}, column {cell % grid.width + 1}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
