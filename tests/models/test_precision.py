"""Narrow products only where a processor has units for them."""

from pathlib import Path

import pytest
import torch

from underpaint.models.train import precision
from underpaint.models.train.precision import autocast, processor_has_bfloat16, product_type


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("model name\t: x\nflags\t\t: fpu avx2 fma\nflags\t: avx512_bf16\n", False),
        ("flags\t\t: fpu avx512f avx512_bf16\n", True),
        ("flags : amx_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("", False),
    ],
)
def test_the_processors_flags_decide(table: str, expected: bool, tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(table)
    assert processor_has_bfloat16(path) is expected


def test_without_a_table_products_are_float32(tmp_path: Path) -> None:
    assert not processor_has_bfloat16(tmp_path / "none")


@pytest.mark.parametrize("narrow", [False, True])
def test_autocast_takes_products_in_that_type(narrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "processor_has_bfloat16", lambda: narrow)
    with autocast("cpu"):
        found = torch.ones(2, 2) @ torch.ones(2, 2)
    assert found.dtype == product_type("cpu") == (torch.bfloat16 if narrow else torch.float32)
    assert product_type("cuda") == torch.bfloat16
