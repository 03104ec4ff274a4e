"""Batches on the device: short ones are filled up, larger ones refused, and what ended tells why."""

import pytest
import torch

from tests.runtime.device.tables import TableForward, TableHost, Tables
from underpaint.algos.accept import RULES
from underpaint.algos.chance import sampling
from underpaint.algos.draft import POLICIES
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import decode
from underpaint.runtime.device import devices
from underpaint.runtime.device.devices import check_memory, open_device
from underpaint.runtime.device.forms import DeviceError
from underpaint.runtime.device.runner import DeviceRunner
from underpaint.runtime.methods.trees.device import TreeForm

TABLES = Tables(0, 5, 1)
GRID = Grid(2, 3)


def runner_of(batch: int, spoilt: bool = False) -> DeviceRunner:
    target = TableForward(TABLES, False)
    target.spoilt = torch.full((batch,), float("nan")) if spoilt else None
    how = TreeForm(RULES["chain"].make(), SamplingParams(), policy=POLICIES["chain"].make(length=2))
    return DeviceRunner(target, TableForward(TABLES.near(1, 0.4), True), how, GRID, 1, batch, torch.device("cpu"))


def condition(*tokens: int) -> torch.Tensor:
    return TableForward(TABLES, False).embed(torch.tensor(tokens)[:, None])


def test_a_short_batch_is_filled_up() -> None:
    runner = runner_of(2)
    runner.begin(condition(3), [7], [4])
    (image,) = runner.finish(1)
    hosts = [TableHost(one, GRID, SamplingParams(), False, 3) for one in (TABLES, TABLES.near(1, 0.4))]
    expected = decode(*hosts, POLICIES["chain"].make(length=2), RULES["chain"].make(), sampling(7, 4))
    assert image.error is None
    assert image.tokens.tolist() == expected.tokens.tolist()
    assert image.cycles == len(expected.cycles)


def test_more_images_than_were_captured_are_refused() -> None:
    with pytest.raises(DeviceError, match="expected 1 to 2 images, as many as were captured"):
        runner_of(2).begin(condition(1, 2, 3), [0, 0, 0], [0, 1, 2])


def test_an_image_that_ended_says_why() -> None:
    runner = runner_of(1, spoilt=True)
    runner.begin(condition(1), [0], [0])
    (image,) = runner.finish(1)
    assert image.tokens is None
    assert image.error == "its logits held NaN or infinity; check the weights and their precision"


def test_plain_autoregression_needs_no_drafter() -> None:
    how = TreeForm(RULES["point"].make(), SamplingParams(temperature=1.0))
    runner = DeviceRunner(TableForward(TABLES, False), None, how, GRID, 1, 1, torch.device("cpu"))
    runner.begin(condition(2), [1], [9])
    host = TableHost(TABLES, GRID, SamplingParams(), False, 2)
    expected = decode(host, None, POLICIES["chain"].make(), RULES["point"].make(), sampling(1, 9))
    assert runner.finish(1)[0].tokens.tolist() == expected.tokens.tolist()


def test_a_device_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="no CUDA device"):
        open_device("cuda:99")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(DeviceError, match=r"capability 8.0 or newer, got 7.5"):
        open_device("cuda")


def test_an_interpreter_that_cannot_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6 makes an index of an array [1], which NumPy 2.4 refuses."""
    assert open_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(devices, "TRITON", "3.6.0")

    def fail(*_: object) -> None:
        raise RuntimeError("TypeError('only 0-dimensional arrays can be converted to Python scalars')")

    monkeypatch.setattr(devices, "launch", fail)
    message = r"Triton 3.6.0's interpreter fails under NumPy .* \(TypeError.*\); install Triton 3.9 with: .*\[device\]"
    with pytest.raises(DeviceError, match=message):
        open_device("cpu")


def test_too_little_memory_says_how_much_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**31))
    check_memory(torch.device("cuda"), 2**29)
    with pytest.raises(DeviceError, match=r"3.0 GiB beside the weights, 3,221,225,472 bytes; the device has 1.0 free"):
        check_memory(torch.device("cuda"), 3 * 2**30)
    with pytest.raises(DeviceError, match=r"the largest that fits has 5 images; lower the batch"):
        check_memory(torch.device("cuda"), 3 * 2**30, "", 16, lambda count: count * 2**30 // 5)
