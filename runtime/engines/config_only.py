"""Decoders of the device backend: the host knows only their config and cannot run their passes."""

from typing import Any, NamedTuple, NoReturn

from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.engines.context import EngineError, Quantization
from underpaint.runtime.engines.engine import PassTimer, manifest_config
from underpaint.zoo.load import Located


class ConfigOnlyEngine:
    """A placeholder for an engine that has the decoder's config and refuses every pass."""

    def __init__(self, decoder: "ConfigOnlyDecoder", rows: int) -> None:
        self.config, self.rows, self.cost, self._name = decoder.config, rows, PassTimer(), decoder.name

    def sample_by(self, params: SamplingParams) -> None:
        """See `Engine`; does nothing, as the device's own program gets the sampling."""

    def close(self) -> None:
        """See `Engine`; there is no memory to free."""

    def __getattr__(self, name: str) -> NoReturn:
        raise EngineError(
            f"{self._name}: with --backend device the host makes no pass ({name}); use another backend for it"
        )


class ConfigOnlyDecoder(NamedTuple):
    """A `LoadedDecoder` with only the parts that a method uses before it draws.

    Attributes:
        name: The name of the model in its folder.
        config: The config in the decoder's manifest.
        located: The checked file.
        quantization: See `EngineContext`.
    """

    name: str
    config: DecoderConfig
    located: Located
    quantization: Quantization | None = None

    @property
    def row_counts(self) -> tuple[int, ...] | None:
        """See `LoadedDecoder`; any number."""
        return None

    def max_positions(self, rows: int) -> int | None:
        """See `LoadedDecoder`; the device has its own limits."""
        return None

    def open(self, rows: int) -> Any:
        return ConfigOnlyEngine(self, rows)


def load_config_only(name: str, located: Located, quantization: Quantization | None = None) -> ConfigOnlyDecoder:
    """Return the decoder of a checked file; raise the errors of `manifest_config`."""
    return ConfigOnlyDecoder(name, manifest_config(located.manifest.settings, name), located, quantization)
