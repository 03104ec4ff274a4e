"""How alike a tokenizer's codes are: what a picture loses when codes are replaced by their k-th nearest one.

LANTERN (arXiv 2410.03355) rests on near-duplicates: many codes stand for nearly the same patch, so a target's mass is
shared among them and none has much. Here that is a figure of the tokenizer alone, before any target is trained.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.arrays import IntArray
from underpaint.models.vq import VQModel
from underpaint.training.data.art import Report, unheard
from underpaint.training.data.textured_scenes import Split
from underpaint.training.pictures import Pictures, to_pixels


@dataclass(frozen=True, slots=True)
class Replacement:
    """What replacing each code by its `rank`-th nearest (0: by a code drawn at random) does to pictures of one side.

    cosine: mean product of the two unit codes, as often as codes are used. change_mse: mean squared change of a pixel
    (values 0..255) against the picture as its own codes decode it; low and high: its 95 % interval (normal, over
    pictures; None of one picture). change_db: the same as PSNR. psnr: against the real picture, where the unchanged
    codes have `DuplicateReport.psnr`. one_cell_mse: mean squared change when a single cell of each picture is replaced,
    over the patch of that cell.
    """

    rank: int
    cosine: float
    change_mse: float
    change_mse_low: float | None
    change_mse_high: float | None
    change_db: float
    psnr: float
    one_cell_mse: float


@dataclass(frozen=True, slots=True)
class DuplicateReport:
    """A tokenizer's near-duplicates on `pictures` pictures of `side` px.

    psnr: of the reconstruction, in dB. codes_used: different codes in these pictures. perplexity: of the codes' shares,
    which is the codebook's size where all are used alike.
    """

    side: int
    pictures: int
    codebook: int
    codes_used: int
    perplexity: float
    psnr: float
    replacements: tuple[Replacement, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON holds it."""
        return asdict(self)


@torch.no_grad()
def near_duplicates(
    vq: VQModel,
    pictures: Pictures,
    *,
    side: int,
    count: int,
    ranks: Sequence[int],
    split: Split = "seen",
    seed: int = 0,
    together: int = 8,
    report: Report = unheard,
) -> DuplicateReport:
    """Encode `count` pictures, decode them with every code replaced, and compare.

    Args:
        vq: the tokenizer, in eval mode, codes on the sphere or not.
        pictures: renderer of scenes.
        side: of the pictures in pixels.
        count: how many pictures, at least 1.
        ranks: which neighbours, each 1 or more and below the codebook's size.
        split: of the scenes.
        seed: of the codes drawn at random, and of the cells for `one_cell_mse`.
        together: pictures decoded at once.
        report: hears how many of the replacements are done.

    Raises ValueError where `count` or a rank is out of range.
    """
    size = vq.config.codebook_size
    if count < 1 or not ranks or not 1 <= min(ranks) <= max(ranks) < size:
        raise ValueError(f"near-duplicates: expected count >= 1 and ranks in 1..{size - 1}, got {count}, {list(ranks)}")
    codebook = vq.quantize.codebook
    nearest = nearest_codes(codebook.numpy().astype(np.float64), max(ranks))
    units = torch.nn.functional.normalize(codebook, dim=1)
    rng = np.random.default_rng(seed)
    real, found = [], []
    for start in range(0, count, together):
        pixels = to_pixels(pictures(range(start, min(count, start + together)), side, split))
        real.append(pixels)
        found.append(vq.encode(pixels))
    codes, wanted = torch.cat(found), torch.cat(real)
    own = _decoded(vq, codes, together)
    shares = np.bincount(codes.numpy().ravel(), minlength=size) / codes.numel()
    used = shares[shares > 0]
    cells = torch.from_numpy(rng.integers(codes.shape[1], size=count))
    replacements = []
    for done, rank in enumerate((*ranks, 0)):
        report("replacing codes", done, len(ranks) + 1, "ranks")
        others = torch.from_numpy(_others(codes.numpy(), nearest, rank, rng))
        changed = _decoded(vq, others, together)
        one = codes.clone()
        one[torch.arange(count), cells] = others[torch.arange(count), cells]
        patch = _patches(_decoded(vq, one, together) - own, cells, vq.config.stride)
        change, low, high = _mean_of_pictures(changed - own)
        cosine = float((units[codes] * units[others]).sum(dim=2).mean())
        replacements.append(
            Replacement(
                rank=rank,
                cosine=cosine,
                change_mse=change,
                change_mse_low=low,
                change_mse_high=high,
                change_db=_decibels(change),
                psnr=_decibels(_mse(changed - wanted)),
                one_cell_mse=_mse(patch),
            )
        )
    return DuplicateReport(
        side,
        count,
        size,
        len(used),
        float(np.exp(-(used * np.log(used)).sum())),
        _decibels(_mse(own - wanted)),
        tuple(replacements),
    )


def _others(codes: IntArray, nearest: IntArray, rank: int, rng: np.random.Generator) -> IntArray:
    """Each code's `rank`-th nearest; rank 0: another code, uniformly."""
    if rank:
        found: IntArray = nearest[codes, rank - 1]
        return found
    size = len(nearest)
    return (codes + rng.integers(1, size, size=codes.shape)) % size


def _decoded(vq: VQModel, codes: Tensor, together: int) -> Tensor:
    starts = range(0, len(codes), together)
    return torch.cat([vq.decode_codes(codes[start : start + together]).clamp(-1, 1) for start in starts])


def _patches(change: Tensor, cells: Tensor, stride: int) -> Tensor:
    """Of pictures [B, 3, H, W], the patch of one cell each: [B, 3, stride, stride]."""
    across = change.shape[3] // stride
    tops, lefts = (cells // across * stride).tolist(), (cells % across * stride).tolist()
    corners = zip(change, tops, lefts, strict=True)
    parts = [picture[:, top : top + stride, left : left + stride] for picture, top, left in corners]
    return torch.stack(parts)


def _mse(error: Tensor) -> float:
    """Mean square in units of a pixel's value, 0..255, of an error in units of [-1, 1]."""
    return float(error.square().mean()) * 127.5**2


def _mean_of_pictures(error: Tensor) -> tuple[float, float | None, float | None]:
    """`_mse` of pictures [B, 3, H, W], and the ends of its 95 % interval."""
    each = np.array([_mse(picture) for picture in error])
    if len(each) < 2:
        return float(each.mean()), None, None
    half = 1.96 * each.std(ddof=1) / len(each) ** 0.5
    return float(each.mean()), float(each.mean() - half), float(each.mean() + half)


def _decibels(mse: float) -> float:
    """PSNR over 0..255 of a mean squared error; infinite for 0."""
    return float(10 * np.log10(255**2 / mse)) if mse > 0 else float("inf")
