"""Decoding methods. This module stays quick to import: commands read the default from it before any model is loaded."""

from typing import Final

DEFAULT_METHOD: Final = "jacobi-lookup"
"""The method of `generate` and `underpaint.draw`: lossless, faster than plain decoding, and without a drafter."""
