"""Pictures of a user's folder: which of many are used, and files that are no pictures."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from underpaint.training.pictures import FolderPictures


def folder_of(folder: Path, classes: int, each: int) -> Path:
    """Pictures in a folder for each class, as of ImageNet; the shade tells the class."""
    for number in range(classes):
        (folder / f"class{number:02}").mkdir(parents=True)
        for picture in range(each):
            Image.new("L", (4, 4), number).save(folder / f"class{number:02}" / f"{picture}.png")
    return folder


def test_of_many_pictures_those_used_are_spread_over_the_folders(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 20, 10)
    every, some, same = FolderPictures(folder), FolderPictures(folder, 40, 2), FolderPictures(folder, 196, 4)
    assert (every.found, every.count("train"), every.count("seen")) == (200, 196, 4)
    assert (some.found, some.count("train"), some.count("seen")) == (200, 40, 2)
    shades, counts = np.unique(some(range(40), 4, "train")[:, 0, 0, 0], return_counts=True)
    assert shades.tolist() == list(range(20))
    assert counts.max() <= 3
    assert some(range(2), 4, "seen")[:, 0, 0, 0].tolist() == [0, 10]
    # Caches of codes from before, in which all pictures are used, stay valid.
    assert same.source == every.source != some.source
    np.testing.assert_array_equal(same(range(196), 4, "train"), every(range(196), 4, "train"))


def test_a_picture_that_is_too_large_to_open_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = FolderPictures(folder_of(tmp_path, 2, 2))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 7)
    with pytest.raises(OSError, match=r"0\.png: expected a picture \(Image size \(16 pixels\) exceeds limit"):
        pictures([0], 4, "seen")
