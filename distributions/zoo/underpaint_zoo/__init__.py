"""The models that ship with Underpaint. `underpaint` finds them by the entry point of this distribution."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "models"
"""The folder of models: `model_index.json`, a manifest for each model, and the weights."""
