"""A self-contained HTML page for the folder of a comparison, which needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jinja2
import numpy as np
from markupsafe import Markup

from underpaint.algos.protocols import Grid
from underpaint.artifacts.results import ResultsError, read_results
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.evaluation.drawing_log import DrawingLog
from underpaint.runtime.evaluation.replay import Replay, ReplayLog
from underpaint.runtime.page.figures import (
    CYCLE_FIELDS,
    acceptance_maps,
    coloured,
    cost_chart,
    facts,
    gallery,
    leaderboard,
)
from underpaint.runtime.page.frames import frames_of
from underpaint.runtime.page.pictures import Decode, PictureStore, code_patches, data_uri

PAGES: Final = jinja2.Environment(loader=jinja2.PackageLoader("underpaint.runtime.page", ""), autoescape=True)
"""Templates of pages, with filters for JSON (`json`), for JSON inside a script element (`script`), and for numbers."""
PAGES.filters["json"] = lambda values: json.dumps(list(values))
PAGES.filters["script"] = lambda values: Markup(json.dumps(values, separators=(",", ":")).replace("<", "\\u003c"))
PAGES.filters["number"] = lambda value, form: format(value, form)
KINDS: Final = ("compare", "evaluate")
"""Kinds of results that a page can show."""


@dataclass(frozen=True, slots=True)
class ComparisonFolder:
    """The content of a comparison's folder.

    Attributes:
        results: The figures of the comparison.
        drawings: The drawings of the first seed, by method and prompt.
        replays: The recorded replays.
        finished: Whether the recording of replays is complete.
    """

    results: Mapping[str, Any]
    drawings: Mapping[tuple[str, str], Drawing]
    replays: tuple[Replay, ...]
    finished: bool = True

    @property
    def grid(self) -> Grid:
        """The grid of image tokens."""
        return Grid(*self.results["model"]["grid"])

    @classmethod
    def read(cls, folder: Path, figures: Path | None = None) -> ComparisonFolder:
        """Read the output of `compare` or `evaluate`.

        Args:
            folder: The folder of the output.
            figures: The JSON file of the figures, if it is not in the folder.

        Raises:
            ValueError: The figures are missing, of another kind or version, or of another run than the drawings.
            OSError: The folder is missing, or a file cannot be read.
        """
        if not folder.is_dir():
            raise NotADirectoryError(f"no folder {folder}; make one with `underpaint compare --out {folder}`")
        names = [folder / f"{kind}.json" for kind in KINDS]
        path = figures or next((one for one in names if one.exists()), names[0])
        if not path.exists():
            raise ResultsError(f"{path}: there are no figures; let the run finish, or name their file with --figures")
        results = read_results(path)
        if results["kind"] not in KINDS:
            raise ResultsError(
                f"{path}: expected results of one model, of {' or '.join(KINDS)}, got '{results['kind']}'; evaluate "
                "one model in a folder for a page of its own"
            )
        if "grid" not in results["model"] or "seeds" not in results["settings"]:
            raise ResultsError(f"{path}: expected the model's grid and the settings' seeds; repeat the comparison")
        log = DrawingLog(folder, None)
        all_drawings = _drawings(log, path, results)
        seed = results["settings"]["seeds"][0]
        drawings = {(one.method, one.prompt): one for one in all_drawings if one.seed == seed}
        recorded = ReplayLog(folder, log.settings or None)  # those of an earlier run may still be there
        replays = tuple(_check_replay(one, drawings, recorded.path) for one in recorded.replays())
        return cls(results, drawings, replays, recorded.finished)

    def check_codes(self, vocab_size: int) -> None:
        """Raise ValueError if a drawing or a replay does not fit the model's grid, or has a token that is no code."""
        pictures: list[Drawing | Replay] = [*self.drawings.values(), *self.replays]
        for one in pictures:
            if len(one.tokens) != self.grid.cells:
                raise ValueError(
                    f"the drawing of {one.prompt!r} by {one.method}, seed {one.seed}, has {len(one.tokens)} tokens, "
                    f"and the figures are of {self.grid.cells} cells; draw it again with --fresh"
                )
            if max(one.tokens) >= vocab_size:
                raise ValueError(
                    f"the drawing of {one.prompt!r} by {one.method}, seed {one.seed}, holds the token "
                    f"{max(one.tokens)}, and these models have {vocab_size} codes; name the folder of its models with "
                    "--models, or draw it again with --fresh"
                )


def _check_replay(replay: Replay, drawings: Mapping[tuple[str, str], Drawing], path: Path) -> Replay:
    """Return the replay; raises ResultsError if its picture was drawn with other tokens."""
    drawing = drawings.get((replay.method, replay.prompt))
    if drawing is not None and drawing.seed == replay.seed and drawing.tokens != replay.tokens:
        raise ResultsError(
            f"{path}: the replay of {replay.prompt!r} by {replay.method} is of another picture than was drawn; delete "
            "the file and record it again with --save-replay"
        )
    return replay


def _drawings(log: DrawingLog, path: Path, results: Mapping[str, Any]) -> list[Drawing]:
    """The drawings of a run; empty if there is no log with the figures."""
    if not log.settings and not log.path.exists():
        return []
    if log.settings:
        _check_same_run(log.path, path, log.settings["models"][0], results)
    drawings = [job.drawing for job in log]
    for row in results["rows"]:
        count = sum(one.method == row["method"] for one in drawings)
        if count < row["images"]:
            raise ResultsError(
                f"{log.path}: expected {row['images']} drawings of {row['method']}, as {path} counts, got {count}; "
                "it was cut short: repeat the command of the comparison, which draws what is missing"
            )
    return drawings


def _check_same_run(log: Path, path: Path, written: Mapping[str, Any], results: Mapping[str, Any]) -> None:
    """Raise ResultsError unless drawings and figures are of one run."""
    settings = {**results["settings"], "model": results["model"]}
    differs = sorted(key for key, value in written.items() if key != "prompt_keys" and value != settings.get(key))
    if differs:
        raise ResultsError(
            f"{log} and {path} are of two runs (they differ in {', '.join(differs)}); repeat the comparison, or name "
            "the figures of these drawings with --json"
        )


def page(folder: ComparisonFolder, decode: Decode | None, why_no_pictures: str, most_prompts: int) -> str:
    """Render the page as HTML.

    Args:
        folder: The content of the comparison's folder.
        decode: Decodes tokens to pictures; None leaves out gallery and replay and shows `why_no_pictures`.
        why_no_pictures: Why the page has no pictures.
        most_prompts: Largest number of prompts in the gallery.
    """
    results, rows = folder.results, folder.results["rows"]
    drawn_prompts = {prompt for _, prompt in folder.drawings}
    prompts = [prompt for prompt in results["settings"].get("prompts", ()) if prompt in drawn_prompts][:most_prompts]
    data: dict[str, Any] = {"pictures": [], "replays": []}
    gallery_rows = None
    if decode is not None:
        store = PictureStore(decode)
        replays = [one for one in folder.replays if one.kind == "tree" or one.events]
        data = _replay_data(replays, folder.grid, store, decode)
        replayed = {(one.method, one.prompt): turn for turn, one in enumerate(replays)}
        gallery_rows = gallery(folder.drawings, [row["method"] for row in rows], prompts, folder.grid, store, replayed)
        data["pictures"] = store.uris
    side = results["model"].get("resolution")
    size = f"{side} px" if side else " x ".join(map(str, results["model"]["grid"])) + " codes"
    return PAGES.get_template("page.html").render(
        title=f"{len(rows)} methods at {size}, temperature {results['settings']['temperature']:g}",
        results=results,
        data=data,
        rows=rows,
        facts=facts(results),
        leaderboard=leaderboard(rows),
        gallery=gallery_rows,
        why_no_pictures=why_no_pictures,
        prompts=prompts,
        grid=folder.grid,
        maps=acceptance_maps(results.get("acceptance_per_cell", {}), rows),
        scale=coloured(np.linspace(0.0, 1.0, 64)[None]),
        chart=cost_chart(results.get("cost_curve"), rows),
        curve=results.get("cost_curve"),
        cycle_fields=CYCLE_FIELDS,
    )


def _replay_data(replays: Sequence[Replay], grid: Grid, store: PictureStore, decode: Decode) -> dict[str, Any]:
    entries, codes = [], set[int]()
    for replay in replays:
        steps = frames_of(replay, grid)
        codes |= steps.codes()
        entries.append(
            {
                "method": replay.method,
                "prompt": replay.prompt,
                "seed": replay.seed,
                "layers": [store.add(layer) for layer in steps.layers],
                "frames": [frame.to_dict() for frame in steps.frames],
            }
        )
    patches = code_patches(codes, grid, decode)
    sheet = {"places": patches.places, "side": patches.side, "picture": data_uri(patches.sheet)}
    return {"grid": list(grid), "replays": entries, "codes": sheet}
