"""GenEval's and DPG-Bench's folders."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from underpaint.runtime.evaluation.scorers import BenchmarkPrompt, write_dpg, write_geneval


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
    metadata = json.loads((tmp_path / "00000" / "metadata.jsonl").read_text())
    assert metadata == {**GENEVAL, "prompt": "a photo of a"}
    assert (tmp_path / "00001" / "samples" / "0000.png").read_bytes() == png(7)


def test_prompts_of_another_file_are_no_genevals(tmp_path):
    with pytest.raises(ValueError, match="b has no 'tag' and 'include'"):
        write_geneval(tmp_path, [prompt("a", **GENEVAL), prompt("b")])
    assert list(tmp_path.iterdir()) == []


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
