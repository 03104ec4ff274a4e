"""GenEval's and DPG-Bench's folders, and their scorers' results read back."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from underpaint.runtime.evaluation.scorers import (
    BenchmarkPrompt,
    read_dpg,
    read_geneval,
    write_dpg,
    write_geneval,
)


def png(shade, side=4):
    stream = io.BytesIO()
    Image.new("RGB", (side, side), (shade, shade, shade)).save(stream, "PNG")
    return stream.getvalue()


def prompt(key="one", pictures=(1, 2), **details):
    return BenchmarkPrompt(key, f"a photo of {key}", details, [png(shade) for shade in pictures])


GENEVAL = {"tag": "counting", "include": [{"class": "fox", "count": 2}]}


def test_genevals_layout_is_that_of_its_readme(tmp_path):
    write_geneval(tmp_path, [prompt("a", **GENEVAL), prompt("b", pictures=(7,), **GENEVAL)])
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    first = ["00000/metadata.jsonl", "00000/samples/0000.png", "00000/samples/0001.png"]
    assert names == [*first, "00001/metadata.jsonl", "00001/samples/0000.png"]
    held = json.loads((tmp_path / "00000" / "metadata.jsonl").read_text())
    assert held == {**GENEVAL, "prompt": "a photo of a"}
    assert (tmp_path / "00001" / "samples" / "0000.png").read_bytes() == png(7)


def test_prompts_of_another_file_are_no_genevals(tmp_path):
    with pytest.raises(ValueError, match="b has no 'tag' and 'include'"):
        write_geneval(tmp_path, [prompt("a", **GENEVAL), prompt("b")])
    assert list(tmp_path.iterdir()) == []


def test_genevals_score_is_the_mean_over_its_tasks(tmp_path):
    rows = [("counting", True), ("counting", False), ("colors", True), ("colors", True), ("colors", False)]
    lines = [json.dumps({"filename": "x.png", "tag": tag, "correct": right}) for tag, right in rows]
    (tmp_path / "results.jsonl").write_text("\n".join(lines))
    found = read_geneval(tmp_path / "results.jsonl")
    assert found.parts == {"counting": 0.5, "colors": pytest.approx(2 / 3)}
    assert found.overall == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert found.pictures == 5


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", '{"tag": "a"}', "[1]", '{"tag": "a", "correct": "yes"}', '{"tag": "a", "correct": 1}'),
        *('{"tag": "a", "correct": null}', '{"tag": ["a"], "correct": true}'),
        '{"tag": "a", "correct": true, "correct": false}',
        "[" * 100_000,
    ],
    ids=range(10),
)
def test_what_geneval_did_not_write_is_refused(tmp_path, text):
    (tmp_path / "results.jsonl").write_text(text)
    with pytest.raises(ValueError, match=r"evaluate_images\.py"):
        read_geneval(tmp_path / "results.jsonl")


def test_dpgs_pictures_of_an_item_stand_two_by_two(tmp_path):
    assert write_dpg(tmp_path, [prompt("12", pictures=(10, 20, 30)), prompt("coco 7", pictures=(40, 50, 60))]) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["12.png", "coco 7.png"]
    sheet = np.asarray(Image.open(tmp_path / "12.png"))[:, :, 0]
    corners = [sheet[:4, :4], sheet[:4, 4:], sheet[4:, :4], sheet[4:, 4:]]
    assert [set(one.ravel().tolist()) for one in corners] == [{10}, {20}, {30}, {0}]
    write_dpg(tmp_path / "single", [prompt("12", pictures=(10,))])
    assert (tmp_path / "single" / "12.png").read_bytes() == png(10)


def test_what_dpg_cannot_read_is_refused_before_anything_is_written(tmp_path):
    other = BenchmarkPrompt("x", "", {}, [png(1, side=8)])
    for wrong, message in (
        ([prompt(pictures=range(5))], "reads 1 to 4 pictures"),
        ([prompt(), other], "square pictures of one size"),
        ([prompt("a/b")], "names no file"),
    ):
        with pytest.raises(ValueError, match=message):
            write_dpg(tmp_path, wrong)
    assert list(tmp_path.iterdir()) == []


def test_dpgs_scores_are_read_from_its_summary(tmp_path):
    (tmp_path / "results.txt").write_text(
        "a/1.png, 1.0, 0.5, 0.75\na/2.png, 0.5, 0.5, 0.5\n"
        "Model: a\nL1 category scores:\n\tentity: 80.5\n\trelation: 61.0\n"
        "L2 category scores:\n\tentity - whole: 79.0\nImage path: a\nSave results to: b\nDPG-Bench score: 62.5\n"
    )
    found = read_dpg(tmp_path / "results.txt")
    assert (found.overall, found.pictures) == (0.625, 2)
    assert found.parts == {"entity": 0.805, "relation": 0.61}
    (tmp_path / "results.txt").write_text("a/1.png, 1.0, 1.0\n")
    with pytest.raises(ValueError, match="to its end"):
        read_dpg(tmp_path / "results.txt")


@pytest.mark.parametrize("score", ["101", "-1", "nan", "\u0661", "1e400", "62.5\nDPG-Bench score: 63.5"])
def test_scores_that_dpg_cannot_have_written_are_refused(tmp_path, score):
    (tmp_path / "results.txt").write_text(f"Model: a\nL1 category scores:\nL2\nDPG-Bench score: {score}\n")
    with pytest.raises(ValueError, match=r"compute_dpg_bench\.py"):
        read_dpg(tmp_path / "results.txt")


def test_a_category_with_another_end_of_line_inside_is_one(tmp_path):
    text = "L1 category scores:\n\tan\u2028entity: 80.5\nL2 category scores:\nDPG-Bench score: 62.5\n"
    (tmp_path / "results.txt").write_text(text, encoding="utf-8")
    assert read_dpg(tmp_path / "results.txt").parts == {"an\u2028entity": 0.805}
