"""The programs whose kernels `tools.compile_ahead` compiles: methods, models and sizes."""

from dataclasses import replace
from itertools import product
from typing import Final, Literal

import torch

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.device.launch import Launch

SLOT_METHODS: Final = ("ar", "eagle2", "adt", "opt-tree", "chain", "delayed", "traversal", "gsd")
"""Methods whose slots on sm_90 are recorded."""
LAYERS: Final = 2
"""Layers of every counted model: each further layer launches the same kernels."""
LINED: Final = ("ar", "eagle2")
"""Methods that are also compiled with an end-of-line token, and in float32 with heads of 128 numbers."""
QUANTISED: Final = ("ar", "chain", "eagle2")
"""Methods that are also compiled with quantised weights: they make passes of one, of a few and of many positions."""
ENGINED: Final = ("eagle2", "zipar")
"""Methods that are also compiled with the passes of an engine."""
ORDERS: Final[tuple[Literal["serial", "islands"], ...]] = ("islands", "serial")
"""Orders of MuLo-SD's repair. The serial one takes the likeliest token, so that both ways of drawing are compiled."""
SHIPPED_BATCH: Final = 4
"""Images of a batch of the shipped models, as in the first command of `docs/explanation/device.md`."""


def all_launches() -> list[Launch]:
    """Return the launches of every method's program, at the sizes of LlamaGen-XL, of 7B and of the shipped models."""
    from tools.device_programs import count_cycle
    from tools.device_sizes import METHODS, SEVEN_B, XL, method_of

    launches: list[Launch] = []
    xl, seven_b = (replace(config, layers=LAYERS) for config in (XL, SEVEN_B))
    for config in (xl, seven_b):
        for name in METHODS:
            launches += count_cycle(config, method_of(name, config.vocab_size), batch=1).launches
        launches += _several_programs(config, torch.bfloat16)
    for name in LINED:
        method = method_of(name, seven_b.vocab_size)
        launches += count_cycle(seven_b, method, batch=1, line_token=0).launches
        launches += count_cycle(seven_b, method, batch=1, dtype=torch.float32).launches
    for config, quantization, name in product((xl, seven_b), ("int8", "fp8"), QUANTISED):
        method = method_of(name, config.vocab_size)
        launches += count_cycle(config, method, batch=1, quantization=quantization).launches
    for config in (xl, seven_b):
        for name in ENGINED:
            launches += count_cycle(config, method_of(name, config.vocab_size), batch=1, engine=True).launches
    return launches + shipped_launches()


def _several_programs(config: DecoderConfig, dtype: torch.dtype) -> list[Launch]:
    """Return the launches of `roofline`'s choices and of MuLo-SD's programs, for one image with guidance."""
    from tools.device_programs import count_cycle, count_islands
    from tools.device_sizes import CHOICES, islands_of, roofline_of

    launches: list[Launch] = []
    for temperature, names in ((1.0, CHOICES), (0.0, ("window",))):
        for name in names:
            launches += count_cycle(config, roofline_of(temperature), 1, 2, dtype, choice=CHOICES[name]).launches
    for order in ORDERS:
        islands = islands_of(config.vocab_size, order, greedy=order == "serial")
        for program in count_islands(config, islands, 1, 2, dtype).values():
            launches += program.launches
    return launches


def shipped_launches() -> list[Launch]:
    """Return the launches of every method's program at the sizes of the shipped models, which are in float32.

    A batch's images begin in a batch of one. The files store large matrices of targets as int8 with a scale per row,
    and those of drafters in groups; small ones in half precision.
    """
    from tools.device_programs import count_cycle
    from tools.device_sizes import METHODS, method_of
    from underpaint.artifacts.model_index import read_index
    from underpaint.runtime.engines.config_only import load_config_only
    from underpaint.zoo.load import FOLDER, locate

    sampler = read_index(FOLDER).sampling()
    config = replace(load_config_only("target128", locate("target128", "target")).config, layers=LAYERS)
    rows, dtype = 1 if sampler.guidance == 1 else 2, torch.float32
    launches = [
        launch
        for batch in (1, SHIPPED_BATCH)
        for name in METHODS
        for launch in count_cycle(
            config, method_of(name, config.vocab_size, sampler.top_k, sampler.guidance), batch, rows, dtype
        ).launches
    ]
    for batch, quantization, name in product((1, SHIPPED_BATCH), ("int8", "int8/64", "half"), QUANTISED):
        method = method_of(name, config.vocab_size, sampler.top_k, sampler.guidance)
        launches += count_cycle(config, method, batch, rows, dtype, quantization=quantization).launches
    return launches + _several_programs(config, dtype)


def slot_launches() -> list[Launch]:
    """Return the launches whose slots are recorded."""
    from tools.device_programs import count_cycle
    from tools.device_sizes import SEVEN_B, XL, method_of

    return [
        launch
        for config in (XL, SEVEN_B)
        for name in SLOT_METHODS
        for launch in count_cycle(config, method_of(name, config.vocab_size), batch=1).launches
    ]
