"""The counts of the house are of the files that are there."""

from pathlib import Path

import pytest

from tools import house_counts


def test_files_count_where_their_text_or_their_name_says_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(house_counts, "ROOT", tmp_path)
    (tmp_path / "algos" / "__pycache__").mkdir(parents=True)
    (tmp_path / "algos" / "one.py").write_text("post_norm = 1\n\n")
    (tmp_path / "algos" / "post_norm.py").write_text('"""Nothing."""\n')
    (tmp_path / "algos" / "other.py").write_text("pre_norm = 1\n")
    (tmp_path / "algos" / "__pycache__" / "post_norm.py").write_text("post_norm = 1\n")
    files = house_counts.python_files("algos", "absent")
    assert [path.name for path in files] == ["one.py", "other.py", "post_norm.py"]
    assert house_counts.lines(files) == 4
    assert [path.name for path in house_counts.naming(r"\bpost_norm\b", files)] == ["one.py", "post_norm.py"]


def test_one_picture_tells_what_generate_imports_and_runs_through() -> None:
    modules, files = house_counts.generate_counts()
    assert 20 < files <= 40
    assert files < modules <= 120
