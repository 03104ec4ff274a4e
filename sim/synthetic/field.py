"""Synthetic models: unstructured rows, and an image field with the structure of image tokens."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, log, log1p
from typing import Any

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.memory import check_memory
from underpaint.algos.protocols import Grid
from underpaint.algos.registry import Registry, build
from underpaint.sim.synthetic.table_model import TableModel

_FREE_CODE_DIMENSIONS = 4
_MOST_SCALE = 1e6
"""Largest value of settings that are not counts. Tables become one-hot long before; larger values overflow."""
_MOST_EXPONENT = 60.0
"""Largest exponent of Zipf's distribution: the largest vocabulary to this power still fits into float64."""
_LEAST_SMOOTHNESS = 1e-3


def _check(model: str, least: float, **settings: float) -> None:
    for name, value in settings.items():
        if not (isfinite(value) and value >= least):
            raise ValueError(f"synthetic model '{model}': {name} must be at least {least:g}, got {value!r}")
        if isinstance(value, float) and value > _MOST_SCALE:
            raise ValueError(f"synthetic model '{model}': {name} must be at most {_MOST_SCALE:g}, got {value!r}")


def _check_share(model: str, **settings: float) -> None:
    for name, value in settings.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"synthetic model '{model}': {name} must be in [0, 1], got {value!r}")


_MOST_SIDE = 1024
_MOST_CODES = 65_536
_MOST_NUMBERS = 2**27
"""Most numbers in a table, or in the pool of images: a gigabyte."""
_MOST_SEED = 2**64 - 1


def _check_most(
    model: str, *, height: int, width: int, images: int, vocab_size: int, tables: int, rows: str, seed: int
) -> None:
    """Raise ValueError, naming the limit, if sizes are too large for tables, or if there is only one cell. tables:
    number of rows of all tables. rows: the setting that mostly determines it.
    """
    if height * width == 1:
        raise ValueError(f"synthetic model '{model}': expected two cells or more, got height 1 and width 1")
    for name, value, most in (
        ("height", height, _MOST_SIDE),
        ("width", width, _MOST_SIDE),
        ("vocab_size", vocab_size, min(_MOST_CODES, _MOST_NUMBERS // tables)),
        (rows, tables, _MOST_NUMBERS // vocab_size),
        ("images", images, max(1, _MOST_NUMBERS // (height * width))),
        ("seed", seed, _MOST_SEED),
    ):
        if value > most:
            row_total = f", {value:,} rows in all" if name == rows else ""
            limit = f"so that there are {most:,} at most" if name == rows else f"must be at most {most:,}"
            raise ValueError(f"synthetic model '{model}': {name} {limit}, got {value:,}{row_total}; take smaller sizes")
    # Target and draft tables, and temporary copies while they are built.
    check_memory(f"the tables of synthetic model '{model}'", "vocab_size", vocab_size, 3 * 8 * tables)


def softmax(logits: FloatArray) -> FloatArray:
    """The softmax over the last axis, float64."""
    masses = np.exp(logits - logits.max(axis=-1, keepdims=True))
    distributions: FloatArray = masses / masses.sum(axis=-1, keepdims=True)
    return distributions


@dataclass(frozen=True, slots=True)
class RowsSettings:
    """Settings of unstructured rows: each cell picks a random row, independent of the tokens.

    Attributes:
        concentration: Parameter of the rows' Dirichlet distribution (small is peaked), or exponent of Zipf's
            distribution.
        error: The share of the drafter's row that comes from another row of the same kind, in [0, 1].
        vocab_size: V, the size of the vocabulary.
        height, width: Rows and columns of an image.
        rows: Number of rows of a table.
        images: Number of images in the pool.
        seed: Seed of the tables and images.
    """

    concentration: float = 0.3
    error: float = 0.3
    vocab_size: int = 128
    height: int = 16
    width: int = 16
    rows: int = 256
    images: int = 64
    seed: int = 0


def dirichlet_rows(settings: RowsSettings, draws: np.random.Generator) -> FloatArray:
    """Draw [rows, V] distributions from a symmetric Dirichlet distribution."""
    gammas = draws.gamma(settings.concentration, size=(settings.rows, settings.vocab_size)) + 1e-12
    distributions: FloatArray = gammas / gammas.sum(axis=1, keepdims=True)
    return distributions


def zipf_rows(settings: RowsSettings, draws: np.random.Generator) -> FloatArray:
    """Draw [rows, V] Zipf distributions, each over its own random order of the tokens."""
    if settings.concentration > _MOST_EXPONENT:
        raise ValueError(
            f"synthetic model 'zipf': concentration must be at most {_MOST_EXPONENT:g}, got {settings.concentration!r}"
        )
    masses = 1.0 / np.arange(1, settings.vocab_size + 1) ** settings.concentration
    distributions: FloatArray = draws.permuted(np.tile(masses / masses.sum(), (settings.rows, 1)), axis=1)
    return distributions


def rows_model(
    name: str, settings: RowsSettings, make: Callable[[RowsSettings, np.random.Generator], FloatArray]
) -> TableModel:
    """Build a table model of unstructured rows."""
    _check(name, 1, vocab_size=settings.vocab_size - 1, height=settings.height, width=settings.width)
    _check(name, 1, rows=settings.rows, images=settings.images)
    _check(name, 0, seed=settings.seed)
    _check(name, 1e-3, concentration=settings.concentration)
    _check_share(name, error=settings.error)
    _check_most(
        name,
        height=settings.height,
        width=settings.width,
        images=settings.images,
        vocab_size=settings.vocab_size,
        tables=2 * settings.rows,
        rows="rows",
        seed=settings.seed,
    )
    draws = np.random.default_rng(settings.seed)
    target, other = make(settings, draws), make(settings, draws)
    grid = Grid(settings.height, settings.width)
    return TableModel(
        name=name,
        grid=grid,
        target=target,
        draft=((1.0 - settings.error) * target + settings.error * other)[None],
        starts=draws.integers(settings.rows, size=(settings.images, grid.cells)),
        classes=np.zeros(settings.vocab_size + 1, dtype=np.int64),
        stride=0,
        codebook=draws.standard_normal((settings.vocab_size, _FREE_CODE_DIMENSIONS)),
    )


@dataclass(frozen=True, slots=True)
class FieldSettings:
    """An image field: rows depend on the left and upper tokens, codes come in clusters, difficulty varies smoothly.

    Attributes:
        vocab_size: Number of codes, a multiple of `clusters`.
        clusters: Number of clusters of near-duplicate codes; a row depends on the clusters of its neighbours.
        spread: Standard deviation of codes around their cluster's centre; 0 makes them equal.
        sharpness: Scale of the target's logits in the middle level of difficulty.
        contrast: Scale of the sharpest level divided by the scale of the flattest level.
        levels: Number of levels of difficulty.
        smoothness: Width in cells of the kernel that smooths the field of difficulty; 0 is no smoothing.
        texture: Logit noise of a cluster's codes in each context, in units of `sharpness`.
        temperature: The drafter divides its logits by this.
        noise: Standard deviation of the normal noise in the drafter's logits.
        context_loss: The drafter uses the upper neighbour only with weight 1 - context_loss.
        drift: The drafter's noise grows by the factor 1 + drift with each token past the root.
        depth_known: Number of drafter tables by tokens past the root; deeper tokens use the last table.
    """

    vocab_size: int = 128
    clusters: int = 8
    spread: float = 0.35
    sharpness: float = 1.5
    contrast: float = 4.0
    levels: int = 6
    smoothness: float = 2.0
    texture: float = 0.6
    temperature: float = 1.0
    noise: float = 0.5
    context_loss: float = 0.3
    drift: float = 0.0
    depth_known: int = 1
    height: int = 16
    width: int = 16
    images: int = 64
    seed: int = 0

    def check(self, name: str = "field") -> None:
        """Raise ValueError, naming the setting, on an invalid value."""
        _check(name, 1, clusters=self.clusters, levels=self.levels, height=self.height, width=self.width)
        _check(name, 1, images=self.images, depth_known=self.depth_known, contrast=self.contrast)
        _check(name, 0, spread=self.spread, sharpness=self.sharpness, smoothness=self.smoothness)
        _check(name, 0, texture=self.texture, noise=self.noise, drift=self.drift, seed=self.seed)
        _check(name, 0.05, temperature=self.temperature)
        if 0.0 < self.smoothness < _LEAST_SMOOTHNESS:
            raise ValueError(
                f"synthetic model '{name}': smoothness must be 0 (none) or at least {_LEAST_SMOOTHNESS:g}, got "
                f"{self.smoothness!r}"
            )
        if (self.depth_known - 1) * log1p(self.drift) > log(_MOST_SCALE):
            raise ValueError(
                f"synthetic model '{name}': drift {self.drift!r} grows the drafter's noise by more than "
                f"{_MOST_SCALE:g} in {self.depth_known} tables; take a smaller drift or depth_known"
            )
        _check_share(name, context_loss=self.context_loss)
        if self.vocab_size < 2 or self.vocab_size % self.clusters:
            raise ValueError(
                f"synthetic model '{name}': vocab_size must be at least 2 and a multiple of clusters = "
                f"{self.clusters}, got {self.vocab_size}"
            )
        _check_most(
            name,
            height=self.height,
            width=self.width,
            images=self.images,
            vocab_size=self.vocab_size,
            tables=(1 + self.depth_known) * self.levels * (self.clusters + 1) ** 2,
            rows="levels x clusters x depth_known",
            seed=self.seed,
        )


def difficulty(settings: FieldSettings, draws: np.random.Generator, grid: Grid) -> IntArray:
    """[images, cells] int64: the level of each cell, 0 being the flattest. All levels cover equally many cells."""
    noise = draws.standard_normal((settings.images, grid.height, grid.width))
    if settings.smoothness > 0.0:
        for axis, size in ((1, grid.height), (2, grid.width)):
            away = np.arange(size)[:, None] - np.arange(size)[None, :]
            kernel = np.exp(-0.5 * (away / settings.smoothness) ** 2)
            noise = np.moveaxis(np.tensordot(noise, kernel, axes=(axis, 1)), -1, axis)
    ranks = noise.reshape(-1).argsort().argsort().reshape(settings.images, grid.cells)
    levels: IntArray = ranks * settings.levels // ranks.size
    return levels


def codebook(settings: FieldSettings, draws: np.random.Generator) -> FloatArray:
    """Draw [V, E] clustered codes; token v belongs to cluster v mod clusters."""
    centres = draws.standard_normal((settings.clusters, _FREE_CODE_DIMENSIONS))
    members = np.arange(settings.vocab_size) % settings.clusters
    codes: FloatArray = centres[members] + settings.spread * draws.standard_normal(
        (settings.vocab_size, _FREE_CODE_DIMENSIONS)
    )
    return codes


def field_model(settings: FieldSettings, name: str = "field") -> TableModel:
    """Build the table model of an image field. Its tables have levels * (clusters + 1)^2 rows."""
    settings.check(name)
    draws = np.random.default_rng(settings.seed)
    grid = Grid(settings.height, settings.width)
    codes = codebook(settings, draws)
    contexts = settings.clusters + 1
    seen, missed = _affinities(codes, settings, draws)
    exponents = np.linspace(-0.5, 0.5, settings.levels) if settings.levels > 1 else np.zeros(1)
    scales = settings.sharpness * settings.contrast**exponents
    target = softmax(_levelled(seen, scales))
    draft_affinities = (1.0 - settings.context_loss) * seen + settings.context_loss * missed
    blurred = _levelled(draft_affinities, scales / settings.temperature)
    noise = settings.noise * draws.standard_normal(blurred.shape)
    draft = [softmax(blurred + noise * (1.0 + settings.drift) ** depth) for depth in range(settings.depth_known)]
    levels = difficulty(settings, draws, grid)
    members = np.arange(settings.vocab_size) % settings.clusters
    return TableModel(
        name=name,
        grid=grid,
        target=target,
        draft=np.stack(draft),
        starts=levels * contexts**2,
        classes=np.append(members, settings.clusters),
        stride=contexts,
        codebook=codes,
    )


def _affinities(
    codes: FloatArray, settings: FieldSettings, draws: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Two arrays [contexts^2, V]: scores of each code given the left and upper neighbours, and given the left alone."""
    members = np.arange(settings.vocab_size) % settings.clusters
    centres = np.stack([codes[members == cluster].mean(axis=0) for cluster in range(settings.clusters)])
    with_none = np.concatenate([centres, centres.mean(axis=0, keepdims=True)])
    contexts = with_none.shape[0]
    left = np.repeat(with_none, contexts, axis=0)
    upper = np.tile(with_none, (contexts, 1))
    texture = settings.texture * draws.standard_normal((contexts**2, settings.clusters))[:, members]

    def affinity(expected: FloatArray) -> FloatArray:
        distances: FloatArray = ((expected[:, None, :] - codes[None, :, :]) ** 2).sum(axis=2)
        return -0.5 * distances + texture

    return affinity(0.5 * (left + upper)), affinity(left)


def _levelled(scores: FloatArray, scales: FloatArray) -> FloatArray:
    """[levels * contexts^2, V] logits."""
    logits: FloatArray = (scales[:, None, None] * scores[None]).reshape(-1, scores.shape[1])
    return logits


@dataclass(frozen=True, slots=True)
class SyntheticModelSpec:
    """A named kind of synthetic model.

    Attributes:
        name: Name of the kind.
        title: Description of the kind.
        make: The dataclass of its settings.
        defaults: Settings that differ from the dataclass's.
    """

    name: str
    title: str
    make: type[RowsSettings] | type[FieldSettings]
    defaults: Mapping[str, Any]


SYNTHETIC_MODELS: Registry[SyntheticModelSpec] = Registry("synthetic model")
for _spec in (
    SyntheticModelSpec("dirichlet", "rows from a Dirichlet distribution, no structure", RowsSettings, {}),
    SyntheticModelSpec("zipf", "rows by Zipf's distribution, no structure", RowsSettings, {"concentration": 1.2}),
    SyntheticModelSpec(
        "field", "an image field: clustered codes, smooth difficulty, left and upper context", FieldSettings, {}
    ),
    SyntheticModelSpec(
        "flat", "a field of flat distributions, as of textures", FieldSettings, {"sharpness": 0.5, "contrast": 2.0}
    ),
    SyntheticModelSpec(
        "sharp", "a field of peaked distributions, as of clean shapes", FieldSettings, {"sharpness": 4.0}
    ),
    SyntheticModelSpec("duplicates", "a field whose clusters hold equal codes", FieldSettings, {"spread": 0.02}),
    SyntheticModelSpec(
        "patchy", "a field of strong, smooth contrasts", FieldSettings, {"contrast": 16.0, "smoothness": 3.0}
    ),
):
    SYNTHETIC_MODELS.register(_spec)


def make_synthetic_model(name: str, settings: Mapping[str, Any]) -> TableModel:
    """Build a synthetic model; `settings` override its defaults. ValueError on an unknown name, setting or value."""
    spec = SYNTHETIC_MODELS[name]
    merged = {**spec.defaults, **settings}
    for field in dataclasses.fields(spec.make):
        value = merged.get(field.name)
        if value is not None and field.type is int and not (isinstance(value, int) and not isinstance(value, bool)):
            raise ValueError(f"synthetic model '{name}': {field.name} must be a whole number, got {value!r}")
    if spec.make is FieldSettings:
        return field_model(build(FieldSettings, merged, f"synthetic model '{name}'"), name)
    rows = build(RowsSettings, merged, f"synthetic model '{name}'")
    return rows_model(name, rows, zipf_rows if name == "zipf" else dirichlet_rows)
