"""Options of `--backend device`, and checks of the GPUs that options name."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

import typer

DEVICE: Final = "device"
"""The backend that draws whole batches with its own programs."""


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Options of `--backend device`: the device, and the engine of the models."""

    device: Annotated[
        str | None,
        typer.Option(
            help="With --backend device: cuda (the default), cuda:1, ..., or cpu, which interprets the same program: "
            "slow, to try it.",
            show_default=False,
        ),
    ] = None
    forward: Annotated[
        str | None,
        typer.Option(
            help="With --backend device, the engine of the models: torch (the default), tensorrt or tensorrt-rtx (on "
            "a GPU), or onnx (on the CPU); `underpaint engine` builds it.",
            show_default=False,
        ),
    ] = None
    quantization: Annotated[
        Literal["int8", "fp8"] | None,
        typer.Option(
            help="With --backend device, round the weights of all layers to int8 or fp8 (e4m3), with a scale per "
            "output channel. This changes the model's distribution; tables and records name the quantization.",
            show_default=False,
        ),
    ] = None

    def check(self, backend: str) -> None:
        """Raise ValueError if device options are given with another backend."""
        if backend != DEVICE and self != NO_DEVICE:
            raise ValueError("--device, --forward and --quantization need --backend device; add it, or leave them out")

    def check_live(self, live: object) -> None:
        """Raise ValueError if the models cannot be run as the options say. `live` is None without a live model."""
        if live is not None and self.forward not in (None, "torch"):
            raise ValueError(f"--forward: expected torch, which runs live models, got {self.forward}; leave it out")
        if self.quantization is not None and live is not None:
            raise ValueError(
                "--quantization: expected exported models, got a live one, which keeps its own weights; leave it out"
            )


NO_DEVICE: Final = DeviceChoice()


@dataclass(frozen=True, slots=True)
class DeviceOptions(DeviceChoice):
    """Options of `--backend device`, with the number of images per batch."""

    batch: Annotated[
        int | None,
        typer.Option(
            help="With --backend device, or --live of generate: images that are drawn together; default: 1.",
            show_default=False,
        ),
    ] = None

    def check(self, backend: str, *, batches: bool = False) -> None:
        """Raise ValueError if device options are given with another backend.

        Args:
            backend: Value of --backend.
            batches: Whether --batch is allowed with other backends too.
        """
        if backend != DEVICE and self != DeviceOptions(batch=self.batch if batches else None):
            raise ValueError(
                "--device, --batch, --forward and --quantization need --backend device; add it, or leave them out. To "
                "choose ONNX Runtime's GPU, write its number after a colon: --backend cuda:1"
            )


def check_ray_gpu(backend: str, device: str | None = None) -> None:
    """Raise ValueError if an option names a GPU by its index, because Ray assigns a GPU to each process.

    Ray shows each process only its own GPU, as number 0.
    """
    for option, value in (("--backend", backend), ("--device", device or "")):
        name, _, index = value.partition(":")
        if index.isdecimal() and int(index):
            raise ValueError(
                f"{option} {value}: expected no GPU index, because Ray assigns a GPU to each process; pass {option} "
                f"{name}, and start Ray with CUDA_VISIBLE_DEVICES={index} to use that GPU"
            )
