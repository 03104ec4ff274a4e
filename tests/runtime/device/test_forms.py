"""A method names its device form as "module:function"; one from outside brings its own."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.cli.synthetic_pipeline import SyntheticPipeline
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.forms import DeviceError, form_of
from underpaint.runtime.methods.fronts.device import jacobi_form
from underpaint.runtime.methods.fronts.method import JacobiFrontsConfig
from underpaint.runtime.methods.registry import METHODS, MethodSpec, Preset, build_method, resolve

PIPELINE = SyntheticPipeline()


@dataclass(frozen=True, slots=True)
class Mine(JacobiFrontsConfig):
    """A method from outside: its settings are a dataclass, its device form is named."""

    @property
    def device(self) -> str:
        return f"{__name__}:form_of_mine"


def form_of_mine(method: Any, sampling: SamplingParams, grid: Any) -> Any:
    return jacobi_form(method, sampling, grid)


def test_a_method_from_outside_brings_its_device_form() -> None:
    preset = Preset(Mine(2, 2), Mine(2, 2))
    METHODS.register(MethodSpec("mine", "a method of a test", preset, preset), replace=False)
    try:
        method = build_method("mine", resolve("mine", 1.0, None, ["window=1"]), PIPELINE.tables)
        form: Any = form_of(method, SamplingParams(), PIPELINE.grid)
        assert form.fronts == Mine(2, 1)
        assert form.layout(PIPELINE.grid, 40, None, 3).envelope.nodes == 2 * PIPELINE.grid.width - 1
        without = build_method("vvs", resolve("vvs", 1.0), PIPELINE.tables)
        with pytest.raises(
            DeviceError, match=r"'vvs' has no form on the device; those that have one: ar, .*, mine, and"
        ):
            form_of(without, SamplingParams(), PIPELINE.grid)
    finally:
        METHODS._specs.pop("mine")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["roofline", "roofline+lantern"])
def test_roofline_is_checked_by_the_trees_that_each_rule_judges(name: str, temperature: float) -> None:
    """Above temperature 0 the window's rule covers drawn siblings alone, and the tree's rule the likeliest."""
    method = build_method(name, resolve(name, temperature, None, ["trees=false"]), PIPELINE.tables)
    form = form_of(method, SamplingParams(temperature=temperature), PIPELINE.grid)
    form.check(PIPELINE.grid, PIPELINE.tables.vocab_size, None)


def test_a_setting_without_a_device_form_is_refused_by_the_plan() -> None:
    method = build_method("adt", resolve("adt", 1.0, None, ["init=random"]), PIPELINE.tables)
    form = form_of(method, SamplingParams(), PIPELINE.grid)
    with pytest.raises(ValueError, match="those that have one: horizontal, vertical"):
        form.check(PIPELINE.grid, PIPELINE.tables.vocab_size, None)
