import dataclasses

import numpy as np
from PIL import Image

from underpaint.runtime.evaluation import gallery as gallery_module
from underpaint.runtime.evaluation.gallery import write_gallery
from underpaint.runtime.evaluation.report_row import ReportRow


def test_a_gallery_of_many_prompts_shows_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery_module, "MOST_COLUMNS", 2)
    row = ReportRow(**{**{field.name: None for field in dataclasses.fields(ReportRow)}, "method": "ar", "speedup": 1.0})
    picture = np.zeros((8, 8, 3), np.uint8)
    widths = []
    for count in (1, 2, 5):
        path = tmp_path / f"{count}.png"
        write_gallery(path, [row], {"ar": [picture] * count}, ["a fox"] * count, "title")
        with Image.open(path) as image:
            widths.append(image.width)
    assert widths[0] < widths[1] == widths[2]


def test_a_long_caption_stays_clear_of_the_heading(tmp_path):
    row = ReportRow(**{**{field.name: None for field in dataclasses.fields(ReportRow)}, "method": "ar", "speedup": 1.0})
    caption = "a glossy tropical fish behind an outlined elephant, with a soccer ball, " * 2
    path = tmp_path / "gallery.png"
    write_gallery(path, [row], {"ar": [np.full((8, 8, 3), 255, np.uint8)]}, [caption], "title")
    with Image.open(path) as image:
        ink = np.asarray(image.convert("L")) < 200
    heading, captions = ink[: ink.shape[0] // 4, :160].any(1).nonzero()[0], ink[:, 310:].any(1).nonzero()[0]
    assert heading.max() < captions.min()


def test_dollars_are_no_mathematics(tmp_path):
    row = ReportRow(**{**{field.name: None for field in dataclasses.fields(ReportRow)}, "method": "a$b$", "speedup": 1})
    picture = np.zeros((8, 8, 3), np.uint8)
    words = "a $^{ fox$ owl"
    write_gallery(tmp_path / "gallery.png", [row], {"a$b$": [picture]}, [words], words)
    assert (tmp_path / "gallery.png").is_file()
