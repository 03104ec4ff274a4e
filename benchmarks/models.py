"""Which models a benchmark measures: the shipped ones, or those of a folder, on prompts in the words that they know."""

import argparse
from pathlib import Path

from underpaint.runtime.pipeline import Pipeline
from underpaint.zoo.load import FOLDER


def models_option(parser: argparse.ArgumentParser) -> None:
    """--models, as the commands have it."""
    parser.add_argument("--models", type=Path, default=FOLDER, help="folder of models; default: the shipped one")


def open_models(asked: argparse.Namespace, resolution: int) -> Pipeline:
    """The models of --models at a resolution; ValueError where they are no folder of models that can be judged.

    Prompts of theirs are chosen by `runtime.evaluation.comparison.read_conditions`.
    """
    return Pipeline.open(asked.models, resolution=resolution)
