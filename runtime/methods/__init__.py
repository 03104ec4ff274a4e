"""Decoding methods. Keep this module quick to import: commands read the default from it before they load a model."""

from typing import Final

DEFAULT_METHOD: Final = "jacobi-lookup"
"""The default of `generate` and `underpaint.draw`: lossless, faster than plain decoding, and it needs no drafter."""
