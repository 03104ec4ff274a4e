"""The aesthetic score of LAION's predictor: layers without activations over CLIP ViT-L-14's features of a picture."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from underpaint.models.metrics.weights import load_weights


class AestheticPredictor:
    """The predictor, by weights on this machine: `layers.N.weight` and `layers.N.bias`, in order."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError where the file is missing, or is no chain of layers that ends in one score."""
        found = load_weights(path, "aesthetic")
        numbers = sorted({int(name.split(".")[1]) for name in found if name.startswith("layers.")})
        try:
            self._layers = [
                (found[f"layers.{one}.weight"].double().numpy(), found[f"layers.{one}.bias"].double().numpy())
                for one in numbers
            ]
        except KeyError as error:
            raise ValueError(f"{path}: expected layers with weight and bias, {error} is missing") from error
        widths = [weight.shape for weight, _ in self._layers]
        joined = all(before[0] == after[1] for before, after in pairwise(widths))
        if not widths or widths[-1][0] != 1 or not joined:
            raise ValueError(f"{path}: expected layers that end in one score, got shapes {widths}")

    @property
    def width(self) -> int:
        """F, of the features that it takes (768 for CLIP ViT-L-14)."""
        return int(self._layers[0][0].shape[1])

    def __call__(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n] scores, about 1 to 10, of CLIP features [n, F] of unit length."""
        if features.ndim != 2 or features.shape[1] != self.width:
            raise ValueError(f"aesthetic score: expected features [n, {self.width}], got {features.shape}")
        for weight, bias in self._layers:
            features = features @ weight.T + bias
        return features[:, 0]
