"""Whether a record is of the models that ship, told by the hashes of both."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from underpaint.zoo.load import manifest, names

NO_MORE: Final = "of models that ship no more"
NOTICE: Final = f"{NO_MORE.capitalize()}."
"""What stands above a table of such a record, and how a claim says it of its record."""
BESIDE: Final[Mapping[str, str]] = {
    "f8b50dfaaf8b6e4856d2dde3860ca9f1a70ae687b26e56a1a9af3e06c06a3145": "the target before guidance was baked in",
    "c6f9d9c8e0f417543e4eda67a68ddc53b82dd908914a344227ca966bb1eeef51": "the target with products in 8 bits",
    "0cb74bdc08a6548d55e78b430a021cb82d0ecf77b5e23f9e0770239bb943bf89": "the up-sampler that learnt tokens alone",
    "59cf2966ebb7361aadd4879d56e8e6a85be725c223b7466722d359c1af75fbfc": "the up-sampler that learnt against a critic",
    "efad4bd78a54c49f7db46341d851ff0d9f03ade5e48d3a9d79b8779120ca170e": "the down-sampler that learnt pictures",
    "b480d34f884ec5922b6408d1a4ebc4eb276a52c6a31a4b18f0a13fff96352c3d": "the down-sampler that learnt against a critic",
}
"""What was exported of the training that the shipped models are of, and does not ship: by its SHA-256, what it is.

`underpaint export target_pair`, `target_eight_bits` and `sampler_up_ce`, from the weights of commit 0df1440
(docs/explanation/scenes.md); `sampler_up_gan`, `sampler_down_pixel` and `sampler_down_gan`, trained on from there, are
not kept.
"""


def named_models(value: object) -> Iterator[tuple[str, str]]:
    """Every model that a record names, with its hash, wherever it stands in the record."""
    if isinstance(value, dict):
        named = value.get("sha256")
        if isinstance(named, dict):
            yield from ((name, digest) for name, digest in named.items() if isinstance(digest, str))
        for inner in value.values():
            yield from named_models(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from named_models(inner)


@cache
def _shipped() -> Mapping[str, str]:
    held = {name: manifest(name) for name in names()}
    return {name: (one.weights or one).sha256 for name, one in held.items()}


def ships(record: object) -> bool | None:
    """Whether all models that a record names ship as they were, or are of the same training; None where it names none.

    Of the same training: those in `BESIDE`.
    """
    found = list(named_models(record))
    return all(_shipped().get(name) == digest or digest in BESIDE for name, digest in found) if found else None


def beside(record: object) -> str:
    """What a record names of `BESIDE`, in words, where all else that it names ships; empty where it names none."""
    found = dict.fromkeys(BESIDE[digest] for _, digest in named_models(record) if digest in BESIDE)
    return " and ".join(found) if ships(record) else ""
