"""The page of a comparison without a browser: its figures, what it needs, and what it refuses."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.run_logs import edit_log
from tests.runtime.page.conftest import METHODS
from underpaint.artifacts.run_log import settings_hash
from underpaint.cli.app import app
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.evaluation.report_row import accepted_cells
from underpaint.runtime.page.document import PAGES, ComparisonFolder, page
from underpaint.runtime.page.figures import edges, runs
from underpaint.runtime.page.frames import frames_of
from underpaint.runtime.page.pictures import code_patches, decoder_for
from underpaint.zoo.load import FOLDER

MOST_BYTES = 6_000_000


class Figures(HTMLParser):
    """Every number that is marked with its place, and every number in the tables that is not."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.marked: list[tuple[list[Any], str, str]] = []
        self.sorted_by: list[str] = []
        self._open: tuple[list[Any], str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        at, form = attributes.get("data-at"), attributes.get("data-form")
        self._open = (json.loads(at), form) if at is not None and form is not None else None
        value = attributes.get("data-value")
        if tag == "td" and value and re.fullmatch(r"[-\d.e]+", value):
            self.sorted_by.append(value)

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.marked.append((*self._open, data))
            self._open = None


def other_figures(text: str, results: dict[str, Any]) -> list[str]:
    """Where the page says something else than the JSON."""
    differences = []
    for place, form, figure_text in Figures(text).marked:
        value: Any = results
        for step in place:
            value = value[step]
        if format(value, form) != figure_text:
            differences.append(f"{place}: {figure_text}, not {format(value, form)}")
    return differences


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "compare.json").read_text())
    return values


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "report.html").read_text()


def test_every_number_equals_the_json(text: str, results: dict[str, Any]) -> None:
    assert other_figures(text, results) == []
    figures = Figures(text)
    places = {json.dumps(place) for place, _, _ in figures.marked}
    height, width = results["model"]["grid"]
    for at, row in enumerate(results["rows"]):
        assert json.dumps(["rows", at, "speedup"]) in places
        assert json.dumps(["rows", at, "target_nfe"]) in places
        assert repr(row["speedup"]) in figures.sorted_by
    drafting = [row["method"] for row in results["rows"] if row["drafter_nfe"] > 0]
    maps = [place for place in places if "acceptance_per_cell" in place]
    assert len(maps) == len(drafting) * height * width
    assert sum("cost_curve" in place for place in places) == 2 * len(results["cost_curve"]["verify_ms"])


def test_another_figure_would_be_seen(folder: Path, results: dict[str, Any]) -> None:
    comparison = ComparisonFolder.read(folder)
    changed = json.loads(json.dumps(results))
    changed["rows"][1]["speedup"] += 0.01
    changed["acceptance_per_cell"]["eagle2"][3][2] += 0.02
    assert other_figures(page(comparison, None, "", 8), changed) != []
    assert len(other_figures(page(comparison, None, "", 8), changed)) == 2


def test_it_holds_the_whole_json(text: str, results: dict[str, Any]) -> None:
    match = re.search(r'<script type="application/json" id="results">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    inside = json.loads(match.group(1))
    assert inside["rows"] == results["rows"]
    assert inside["acceptance_per_cell"] == results["acceptance_per_cell"]


def test_it_needs_nothing_beside_it(text: str) -> None:
    assert len(text.encode()) < MOST_BYTES
    bare = re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.DOTALL)
    assert not re.search(r"https?://|<link|@import|\bfetch\(|XMLHttpRequest|src=\"(?!data:)", bare)
    assert "{{" not in bare


def test_it_can_be_read_without_seeing(text: str) -> None:
    assert '<html lang="en">' in text
    images = re.findall(r"<img [^>]*>", text)
    assert len(images) >= len(METHODS)
    assert all(re.search(r'alt="[^"]+"', image) for image in images)
    assert all('scope="' in head for head in re.findall(r"<th\b[^>]*>", text))
    assert text.count("<caption>") >= 3
    assert not re.search(r'tabindex="[1-9]', text)
    assert re.findall(r"<h(\d)", text)[0] == "1"


def test_a_replay_shows_what_was_drawn(folder: Path) -> None:
    comparison = ComparisonFolder.read(folder)
    assert [one.method for one in comparison.replays] == list(METHODS)
    for replay in comparison.replays:
        drawing = comparison.drawings[replay.method, replay.prompt]
        assert replay.tokens == drawing.tokens
        steps = frames_of(replay, comparison.grid)
        cell_layers: dict[int, int] = {}
        for frame in steps.frames:
            assert frame.text
            for layer, cells in frame.puts:
                cell_layers.update(dict.fromkeys(cells, layer))
        assert steps.layers[0] == drawing.tokens
        assert cell_layers == dict.fromkeys(range(comparison.grid.cells), 0)
        check_marks(drawing, replay.kind, [frame.marks for frame in steps.frames], comparison)


def check_marks(
    drawing: Drawing, kind: str, marks: list[dict[str, tuple[int, ...]]], comparison: ComparisonFolder
) -> None:
    kept_mask = np.zeros(comparison.grid.cells, dtype=np.bool_)
    for each in marks:
        kept_mask[list(each.get("kept", ()))] = True
    assert (kept_mask.reshape(comparison.grid) == accepted_cells(drawing, comparison.grid)).all()
    if kind == "repair":
        assert sum(len(each.get("refused", ())) for each in marks) == drawing.rejected
        redrawn = {cell for each in marks for cell in each.get("drawn", ())}
        assert redrawn == set(np.flatnonzero(~kept_mask).tolist())
    if kind == "tree":
        assert drawing.accepted is not None
        assert [len(each.get("kept", ())) for each in marks[1:]] == list(drawing.accepted)


def test_the_frames_of_trees_say_what_was_counted(folder: Path) -> None:
    comparison = ComparisonFolder.read(folder)
    replay = next(one for one in comparison.replays if one.method == "adt+lantern")
    drawing = comparison.drawings[replay.method, replay.prompt]
    texts = [frame.text for frame in frames_of(replay, comparison.grid).frames][1:]
    assert drawing.accepted is not None
    assert drawing.nodes is not None
    for text, accepted, nodes in zip(texts, drawing.accepted, drawing.nodes, strict=True):
        if nodes:
            assert f"{nodes} token" in text
            assert f"{accepted} accepted, {nodes - accepted} refused" in text


def test_patches_are_the_codes_asked_for(folder: Path) -> None:
    comparison = ComparisonFolder.read(folder)
    decode = decoder_for(FOLDER, comparison.results["model"])
    patches = code_patches({5, 900, 3, *range(40, 70)}, comparison.grid, decode)
    assert list(patches.places.values()) == list(range(33))
    codes = (3, 69, 900)
    alone = np.array([decode(np.full(comparison.grid.cells, code)).mean(axis=(0, 1)) for code in codes])
    for turn, code in enumerate(codes):
        at = patches.places[code] * patches.side
        colour = patches.sheet[:, at : at + patches.side].mean(axis=(0, 1))
        assert np.abs(alone - colour).sum(axis=1).argmin() == turn


def test_outlines() -> None:
    mask = np.array([[True, True, False], [False, True, False]])
    assert runs(mask) == "M0 0h2v1H0zM1 1h1v1H1z"
    assert edges(mask) == "M0 1H1M1 1V2M2 0V2"


def refused(arguments: list[str]) -> str:
    done = CliRunner().invoke(app, ["report", *arguments])
    assert done.exit_code == 2, done.output
    return " ".join(done.output.split())


def copy_of(folder: Path, place: Path) -> Path:
    copied = place / "run"
    shutil.copytree(folder, copied)
    (copied / "report.html").unlink()
    return copied


def test_what_is_no_comparison_is_refused(folder: Path, tmp_path: Path) -> None:
    assert "make one with `underpaint compare" in refused([str(tmp_path / "none")])
    assert "there are no figures" in refused([str(tmp_path)])
    copied = copy_of(folder, tmp_path)
    (copied / "compare.json").write_text('{"rows": 3}')
    assert "expected results of version 1" in refused([str(copied)])
    (copied / "compare.json").write_text("{")
    assert "expected JSON" in refused([str(copied)])
    assert not (copied / "report.html").exists()


def test_figures_of_another_run_are_refused(folder: Path, tmp_path: Path) -> None:
    copied = copy_of(folder, tmp_path)
    values = json.loads((copied / "compare.json").read_text())
    values["settings"]["temperature"] = 0.5
    values["settings"]["seeds"] = [0, 1]
    (copied / "compare.json").write_text(json.dumps(values))
    assert "are of two runs (they differ in seeds, temperature)" in refused([str(copied)])


def test_damaged_replays_are_refused(folder: Path, tmp_path: Path) -> None:
    copied = copy_of(folder, tmp_path)
    (copied / "replays.jsonl").write_text('{"format": 1, "hash": ""}\n{"kind": "tree"}\n')
    assert "replays.jsonl is no record of a recording of replays, or was edited" in refused([str(copied)])


def test_replays_of_an_earlier_run_are_left_out(folder: Path, tmp_path: Path) -> None:
    """As `compare --fresh` with other settings leaves them."""

    def change(values: list[dict[str, Any]]) -> None:
        (model,) = values[0]["settings"]["models"]
        settings = {"models": [{**model, "temperature": 0.5}]}
        values[0] |= {"settings": settings, "hash": settings_hash(settings)}

    copied = copy_of(folder, tmp_path)
    assert ComparisonFolder.read(copied).replays
    edit_log(copied / "replays.jsonl", change)
    comparison = ComparisonFolder.read(copied)
    assert (comparison.replays, comparison.finished) == ((), True)


def test_other_models_leave_the_pictures_out(folder: Path, tmp_path: Path) -> None:
    copied = copy_of(folder, tmp_path)
    sha = json.loads((folder / "compare.json").read_text())["model"]["sha256"]["vq_decoder"]
    figures = copied / "compare.json"
    figures.write_text(figures.read_text().replace(sha, "0" * 64))

    def change(values: list[dict[str, Any]]) -> None:
        settings = json.loads(json.dumps(values[0]["settings"]).replace(sha, "0" * 64))
        values[0] |= {"settings": settings, "hash": settings_hash(settings)}

    edit_log(copied / "drawings.jsonl", change)
    done = CliRunner().invoke(app, ["report", str(copied)])
    assert done.exit_code == 0, done.output
    assert "Pictures are left out" in (copied / "report.html").read_text()
    assert "is not the decoder" in refused([str(copied), "--models", str(FOLDER)])


def test_a_page_without_replays_says_how_to_record_them(folder: Path, tmp_path: Path) -> None:
    copied = copy_of(folder, tmp_path)
    (copied / "replays.jsonl").unlink()
    assert CliRunner().invoke(app, ["report", str(copied)]).exit_code == 0
    assert "--save-replay 2" in (copied / "report.html").read_text()


@pytest.mark.parametrize("share", [0.0, 0.4, 0.9])
def test_drawings_cut_short_are_refused(folder: Path, tmp_path: Path, share: float) -> None:
    shutil.copytree(folder, tmp_path / "cut")
    log = tmp_path / "cut" / "drawings.jsonl"
    content = log.read_bytes()
    log.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"expected 1 drawings of .*got 0; it was cut short"):
        ComparisonFolder.read(tmp_path / "cut")


def test_no_prompt_ends_or_comments_out_a_script_element() -> None:
    prompt = "<!-- <script> </script> & a fox"
    text = str(PAGES.filters["script"]({"prompt": prompt}))
    assert "<" not in text
    assert json.loads(text) == {"prompt": prompt}
