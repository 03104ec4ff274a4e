"""The networks of `underpaint metrics score`, and a method's pictures through them."""

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from underpaint.algos.registry import suggest
from underpaint.models.metrics.aesthetic import AestheticPredictor
from underpaint.models.metrics.clip import Clip
from underpaint.models.metrics.inception import Inception
from underpaint.models.metrics.weights import check_weights
from underpaint.runtime.evaluation.metrics.features import (
    AdmReference,
    Moments,
    fid,
    inception_score,
    kid,
    precision_recall,
    read_adm_reference,
)

if TYPE_CHECKING:
    from underpaint.algos.arrays import FloatArray
    from underpaint.runtime.evaluation.drawing_log import StoredPicture

_BATCH = 32
_PICTURES = (".png", ".jpg", ".jpeg", ".webp")
_OF_SETS = ("fid", "kid", "precision-recall")
_BY_INCEPTION = (*_OF_SETS, "is")


def check_asked(wanted: Sequence[str], known: Sequence[str], **files: Path | None) -> None:
    """ValueError for an unknown metric, or one whose file is not there: before any work."""
    if not wanted:
        raise ValueError(f"--metrics: expected some of {', '.join(known)}, got none")
    for name in wanted:
        if name not in known:
            raise ValueError(f"--metrics: there is no '{name}'; {suggest(name, known)}")
    asked = set(wanted)
    if asked & set(_BY_INCEPTION):
        check_weights(files["inception"], "inception")
    if asked & {"clip", "hps", "aesthetic"}:
        check_weights(files["clip"], "clip")
    for name in asked & {"hps", "aesthetic"}:
        check_weights(files[name], name)
    if asked & set(_OF_SETS):
        reference = check_weights(files["reference"], "adm")
        if not reference.is_dir() and asked & {"kid", "precision-recall"}:
            raise ValueError("--reference: KID, precision and recall take a folder of real pictures, not statistics")


@dataclass(slots=True)
class Networks:
    """What the asked metrics need, loaded. hashes: SHA-256 of the files, by what they are for."""

    inception: Inception | None = None
    clip: Clip | None = None
    hps: Clip | None = None
    aesthetic: AestheticPredictor | None = None
    statistics: AdmReference | Moments | None = None
    real: "FloatArray | None" = None
    hashes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        wanted: Sequence[str],
        inception: Path | None,
        reference: Path | None,
        clip: Path | None,
        hps: Path | None,
        aesthetic: Path | None,
    ) -> "Networks":
        """Load what `wanted` needs; ValueError where a file is not what it should be."""
        found = cls()
        if inception is not None and set(wanted) & set(_BY_INCEPTION):
            found.inception = Inception(inception)
            found.hashes["inception"] = _hash(inception)
        if clip is not None and set(wanted) & {"clip", "aesthetic"}:
            found.clip = Clip(clip)
            found.hashes["clip"] = _hash(clip)
        if clip is not None and hps is not None and "hps" in wanted:
            found.hps = Clip(clip, hps)
            found.hashes["hps"] = _hash(hps)
        if aesthetic is not None and "aesthetic" in wanted:
            found.aesthetic = AestheticPredictor(aesthetic)
            found.hashes["aesthetic"] = _hash(aesthetic)
        if reference is not None and found.inception is not None and set(wanted) & set(_OF_SETS):
            found.hashes["reference"] = _hash(reference)
            if reference.is_dir():
                found.real = _features_of_folder(found.inception, reference)
                found.statistics = Moments.of(found.real)
            else:
                found.statistics = read_adm_reference(reference)
        return found


def score_method(networks: Networks, wanted: Sequence[str], pictures: "Sequence[StoredPicture]") -> dict[str, float]:
    """The figures of one method's pictures, by metric."""
    kept: dict[str, list[Any]] = {name: [] for name in ("moments", "features", "shares", "clip", "hps", "aesthetic")}
    whole = bool({"kid", "precision-recall"} & set(wanted))  # these compare picture with picture
    for arrays, prompts in _batches(pictures):
        if networks.inception is not None:
            seen = networks.inception(arrays)
            kept["moments"] = [Moments.merged([*kept["moments"], Moments.of(seen.features)])]
            kept["features"] += [seen.features] if whole else []
            kept["shares"] += [seen.probabilities] if "is" in wanted else []
        if networks.clip is not None:
            shown = networks.clip.of_pictures(list(arrays))
            if "clip" in wanted:
                kept["clip"].append((shown * networks.clip.of_texts(prompts)).sum(axis=1))
            if networks.aesthetic is not None:
                kept["aesthetic"].append(networks.aesthetic(shown))
        if networks.hps is not None:
            kept["hps"].append((networks.hps.of_pictures(list(arrays)) * networks.hps.of_texts(prompts)).sum(axis=1))
    found = {name: float(np.concatenate(kept[name]).mean()) for name in ("clip", "hps", "aesthetic") if kept[name]}
    if networks.inception is not None:
        found |= _by_inception(networks, wanted, kept)
    return found


def _batches(pictures: "Sequence[StoredPicture]") -> Iterator[tuple[NDArray[np.uint8], list[str]]]:
    """Pictures [n, h, w, 3] with their prompts, a batch at a time."""
    for start in range(0, len(pictures), _BATCH):
        part = pictures[start : start + _BATCH]
        arrays = [np.asarray(Image.open(io.BytesIO(one.png())).convert("RGB")) for one in part]
        yield np.stack(arrays), [one.prompt for one in part]


def _by_inception(networks: Networks, wanted: Sequence[str], kept: Mapping[str, list[Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    if "fid" in wanted and networks.statistics is not None:
        found["fid"] = fid(kept["moments"][0], networks.statistics)
    if networks.real is not None and kept["features"]:
        features: FloatArray = np.concatenate(kept["features"])
        if "kid" in wanted:
            found["kid"], found["kid_deviation"] = kid(features, networks.real)
        if "precision-recall" in wanted:
            found["precision"], found["recall"] = precision_recall(features, networks.real)
    if "is" in wanted:
        found["is"], found["is_deviation"] = inception_score(np.concatenate(kept["shares"]))
    return found


def _features_of_folder(network: Inception, folder: Path) -> "FloatArray":
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _PICTURES and path.is_file())
    if len(paths) < 2:
        raise ValueError(f"{folder}: expected real pictures ({', '.join(_PICTURES)}), found {len(paths)}")
    rows = [network(np.asarray(Image.open(path).convert("RGB"))[None]).features for path in paths]
    return np.concatenate(rows)


def _hash(path: Path) -> str:
    """SHA-256 of a file, or of a folder's files with their names."""
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    whole = hashlib.sha256()
    for one in files:
        with one.open("rb") as held:
            told = hashlib.file_digest(held, "sha256").hexdigest()
        if path.is_file():
            return told
        whole.update(f"{one.relative_to(path)}\0{told}\0".encode())
    return whole.hexdigest()
