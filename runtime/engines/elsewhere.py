"""Decoders that run on a device of their own: on the host there is their config, and no pass."""

from typing import Any, NamedTuple, NoReturn

from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.engine import PassTimer, manifest_config
from underpaint.zoo.load import Located


class ElsewhereEngine:
    """Holds the place of an engine: it says what the decoder is, and refuses every pass."""

    def __init__(self, decoder: "ElsewhereDecoder", rows: int) -> None:
        self.config, self.rows, self.cost, self._name = decoder.config, rows, PassTimer(), decoder.name

    def sample_by(self, params: SamplingParams) -> None:
        """See `Engine`: the device is told by its own program."""

    def close(self) -> None:
        """See `Engine`: it holds no memory."""

    def __getattr__(self, name: str) -> NoReturn:
        raise EngineError(
            f"{self._name}: with --backend device the host makes no pass ({name}); use another backend for it"
        )


class ElsewhereDecoder(NamedTuple):
    """Implements `LoadedDecoder`, as far as a method asks before it draws. located: its file, checked."""

    name: str
    config: DecoderConfig
    located: Located

    @property
    def row_counts(self) -> tuple[int, ...] | None:
        """See `LoadedDecoder`: any number."""
        return None

    def max_positions(self, rows: int) -> int | None:
        """See `LoadedDecoder`: the device has limits of its own."""
        return None

    def open(self, rows: int) -> Any:
        return ElsewhereEngine(self, rows)


def load_elsewhere(name: str, located: Located) -> ElsewhereDecoder:
    """The decoder of a checked file; ManifestError or EngineError as `manifest_config` raises."""
    return ElsewhereDecoder(name, manifest_config(located.manifest.settings, name), located)
