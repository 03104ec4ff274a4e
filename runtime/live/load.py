"""Opens a live model from a local folder, for the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from underpaint.algos.protocols import Grid
from underpaint.artifacts.strict_json import read_object
from underpaint.runtime.live.causal_families import CLASSES
from underpaint.runtime.live.drafter_layouts import open_drafter
from underpaint.runtime.live.families import FAMILIES, Family, family_of
from underpaint.runtime.live.model import LiveModel, LiveModelError
from underpaint.runtime.live.near_ties import NearTies, exact_model
from underpaint.runtime.live.pipeline import LivePipeline
from underpaint.runtime.live.published import TOKENIZERS, load_published
from underpaint.runtime.live.words import WordsReader

_OWN = "family"
"""Name of the function that a user's .py file must define for its own family."""


def open_live(
    folder: Path,
    family: str | None = None,
    grid: str | None = None,
    dtype: str = "auto",
    drafter: Path | None = None,
    device: str = "cpu",
    verify_near_ties: NearTies | None = None,
    processor: Path | None = None,
    compiled: bool = False,
) -> LivePipeline:
    """Load a `transformers` model from a local folder, or a published checkpoint; nothing is downloaded.

    Args:
        folder: A folder as written by `save_pretrained` or downloaded from the hub: config.json, weights, and the
            processor's files for prompts as text. Or a checkpoint of LlamaGen or Tar's de-tokenizer; then set family.
        family: A name from `runtime.live.families.FAMILIES`, or a .py file that defines a function `family`; None
            chooses by the model's class.
        grid: Rows and columns of tokens, "48x48"; None takes the family's usual size.
        dtype: "auto" (as the weights are stored), "float32", "bfloat16" or "float16".
        drafter: Folder of a drafter trained for the model; None for methods that need none.
        device: Device to load the model on.
        verify_near_ties: See `runtime.live.generate.accelerate`.
        processor: Folder of the processor's or tokenizer's files; None takes the model's own folder.
        compiled: See `runtime.live.pipeline.LivePipeline`.

    Raises:
        LiveModelError: No such folder, model class or family; the message says what to do.
        ValueError: `grid` is not a valid grid.
    """
    sized, chosen_family = None if grid is None else Grid.read(grid), read_family(family)
    if isinstance(chosen_family, str) and chosen_family in TOKENIZERS:
        model = load_published(chosen_family, folder, dtype, sized).to(device)
        words = None if processor is None else WordsReader(chosen_family, "", model.decoder.config, processor)
        return _pipeline(model, chosen_family, words, folder, sized, drafter, verify_near_ties, compiled)
    config = folder / "config.json"
    if folder.is_file():
        raise LiveModelError(
            f"--live {folder}: expected a folder as save_pretrained() writes it, got a file; name what checkpoint it "
            f"is with --family: {', '.join(TOKENIZERS)}"
        )
    if not config.is_file():
        raise LiveModelError(
            f"--live {folder}: expected a folder with config.json and weights, as save_pretrained() writes it, got "
            "none; download the model first"
        )
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise LiveModelError(
            "--live needs transformers and PyTorch; install them: pip install 'underpaint[live]'"
        ) from error
    names = read_object(config).get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    name = CLASSES.get(family or "", name)
    library: Any = transformers
    model_class = getattr(library, name, None)
    if model_class is None or not hasattr(model_class, "from_pretrained"):
        raise LiveModelError(
            f"{config}: architectures: expected a model class of transformers {library.__version__}, got "
            f"{name!r}; give a model that it knows"
        )
    if chosen_family is None:
        family_of(type(name, (), {})())  # fails for a class without a family before its weights are read
    library.utils.logging.disable_progress_bar()
    try:
        model = model_class.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        lines = str(error).strip().splitlines()
        raise LiveModelError(
            f"--live {folder}: the weights could not be loaded ({lines[0] if lines else error})"
        ) from error
    model.eval().to(device)
    reader = _processor(library, processor or folder)
    if processor is not None and reader is None:
        raise LiveModelError(
            f"--tokenizer {processor}: expected the files of a processor or a tokenizer, got none that transformers "
            "reads; copy every file of it"
        )

    return _pipeline(model, chosen_family, reader, folder, sized, drafter, verify_near_ties, compiled)


def _pipeline(
    model: Any,
    family: str | Family | None,
    processor: Any,
    folder: Path,
    grid: Grid | None,
    drafter: Path | None,
    verify_near_ties: NearTies | None,
    compiled: bool,
) -> LivePipeline:
    """Build the pipeline of a loaded model; see `open_live`. Its weights get no gradients, also beside a drafter."""
    model.requires_grad_(False)

    def make(loaded: Any) -> LiveModel:
        return family_of(loaded, family)(loaded, processor, grid=grid, longest_prompt=1024)

    live, exact = make(model), exact_model(verify_near_ties, model, make)
    opened = None if drafter is None else open_drafter(live, drafter)
    return LivePipeline(live, opened, processor, folder, exact, compiled)


def _processor(transformers: Any, folder: Path) -> Any:
    """Return the model's processor, or its tokenizer; None if the folder has neither."""
    for kind in ("AutoProcessor", "AutoTokenizer"):
        try:
            return getattr(transformers, kind).from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, TypeError, ImportError, json.JSONDecodeError):
            continue
    return None


def read_family(text: str | None) -> str | Family | None:
    """Return a family's name, or the function `family` of a .py file; raises LiveModelError for anything else."""
    if text is None or text in FAMILIES:
        return text
    path = Path(text)
    if path.suffix != ".py":
        raise LiveModelError(f"--family: expected one of {', '.join(FAMILIES)}, or a .py file, got {text[:60]!r}")
    if not path.is_file():
        raise LiveModelError(f"--family {path}: there is no such file; docs/how-to/use-a-live-model.md shows one")
    from runpy import run_path

    try:
        function = run_path(str(path)).get(_OWN)
    except Exception as error:
        raise LiveModelError(f"--family {path}: it raised {type(error).__name__}: {error}; mend it") from error
    if not callable(function):
        raise LiveModelError(f"--family {path}: expected a function named {_OWN}, got none; define one")
    family: Family = function
    return family
