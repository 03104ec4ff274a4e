"""The memory that this process may still use, by the system's tables."""

from pathlib import Path

import pytest

from underpaint.algos import memory


@pytest.mark.parametrize(
    ("available", "most", "used", "cached", "expected"),
    [
        (900, "max", 500, 100, 900 * 1024),
        (900, "600000", 500_000, 300_000, 400_000),
        (900, "600000", 500_000, None, 100_000),
        (300, "600000", 100_000, 0, 300 * 1024),
        (900, "600000", 700_000, 0, 0),
        (900, None, None, None, 900 * 1024),
        (None, "600000", 0, 0, 8 * 2**30),
    ],
)
def test_files_in_the_cache_of_a_control_group_are_free(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    available: int | None,
    most: str | None,
    used: int | None,
    cached: int | None,
    expected: int,
) -> None:
    tables = {
        "meminfo": "MemTotal: 1000 kB\n" + (f"MemAvailable:     {available} kB\n" if available is not None else ""),
        "memory.max": None if most is None else f"{most}\n",
        "memory.current": None if used is None else f"{used}\n",
        "memory.stat": None if cached is None else f"file 999999\nactive_file 5\ninactive_file {cached}\n",
    }
    for name, text in tables.items():
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    assert memory.free_bytes() == expected
