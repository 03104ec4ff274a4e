"""Which picture each code of a target stands for: its codebook, and whether a tokenizer has the same."""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from underpaint.export.decoder_weights import plain
from underpaint.models.published.files import CheckpointError
from underpaint.models.published.options import Published
from underpaint.runtime.resampling.registry import read_codebook
from underpaint.zoo.load import manifest, names

CHAMELEON_CODES: Final = "model.vqmodel.quantize.embedding.weight"
"""The codebook in a Chameleon checkpoint, beside the language model."""
_ROUNDING: Final = 2.0**-7
"""How far apart one number lies in two precisions, over its size: two roundings to bfloat16."""
_LEAST: Final = 1e-6
_OTHER: Final = {"chameleon": "vq_decoder", "chameleon-vq": "target"}
"""The model whose codes a kind must share."""


def codebook_of(loaded: Published) -> NDArray[np.float32] | None:
    """The codebook [V, E] that a checkpoint holds; None for a target that comes without.

    Raises CheckpointError where a Chameleon's codebook and its vocabulary differ in size.
    """
    if loaded.vq is not None:
        return plain(loaded.vq.quantize.codebook)
    if loaded.kind != "chameleon" or loaded.decoder is None or CHAMELEON_CODES not in loaded.checkpoint.tensors:
        return None
    found, vocab_size = plain(loaded.checkpoint.tensors[CHAMELEON_CODES]), loaded.decoder.config.vocab_size
    if found.shape[0] != vocab_size:
        raise CheckpointError(
            f"chameleon: {CHAMELEON_CODES} holds {found.shape[0]} codes, vocabulary_map {vocab_size}; copy weights and "
            "config.json from one release"
        )
    return found


def require_same_codes(loaded: Published, folder: Path) -> None:
    """Raise CheckpointError where a Chameleon's target and its tokenizer, one of them in `folder`, differ in codes.

    Numbers of codes are compared, and codebooks where both are known: equal up to the rounding of their precisions.
    """
    other = _OTHER.get(loaded.kind)
    known = names(folder) if folder.is_dir() else ()
    if other is None or other not in known:
        return
    codebook = codebook_of(loaded)
    there = manifest(other, folder).settings["vocab_size"]
    remedy = "a folder holds a target and the tokenizer it was trained with"
    if there != loaded.codes:
        raise CheckpointError(f"{loaded.kind}: {loaded.codes} codes, but '{other}' in {folder} has {there}; {remedy}")
    if codebook is None or "codebook" not in known:
        return
    before = read_codebook(folder)
    if before.shape != codebook.shape or not np.allclose(before, codebook, rtol=_ROUNDING, atol=_LEAST):
        raise CheckpointError(f"{loaded.kind}: other codes than those of '{other}' in {folder}; {remedy}")
