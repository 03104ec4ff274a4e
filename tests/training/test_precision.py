"""Narrow products only where a processor has units for them."""

from pathlib import Path

import pytest
import torch

from underpaint.training import precision
from underpaint.training.precision import autocast, describe_products, processor_has_bfloat16, product_type


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
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == product_type("cpu") == (torch.bfloat16 if narrow else torch.float32)


@pytest.mark.parametrize("narrow", [True, False])
def test_a_gpu_is_asked_for_units_of_its_own_and_not_for_emulation(
    monkeypatch: pytest.MonkeyPatch, narrow: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: narrow or including_emulation)
    monkeypatch.setattr(precision, "gpu_has_bfloat16", precision.gpu_has_bfloat16.__wrapped__)
    assert product_type("cuda") == (torch.bfloat16 if narrow else torch.float32)
    assert ("compute capability 8.0 or more" in describe_products("cuda")) is not narrow


def test_a_processor_without_the_units_is_told_of_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "processor_has_bfloat16", lambda: False)
    message = describe_products("cpu")
    assert message.startswith("products in float32 on cpu, which has no bfloat16 units")
    assert "amx_bf16, avx512_bf16, bf16" in message
    assert "or with --device cuda" in message
    monkeypatch.setattr(precision, "processor_has_bfloat16", lambda: True)
    assert describe_products("cpu") == "products in bfloat16 on cpu"
