"""Compares a method's pictures with the baseline's: the judge's readings, a two-sample classifier, and likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.conditions import Condition
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.engines.images import Picture
from underpaint.runtime.evaluation.comparison import BASELINE
from underpaint.runtime.evaluation.likelihood import image_log_likelihood
from underpaint.runtime.evaluation.paired import attribute_log_probability, paired_difference
from underpaint.runtime.evaluation.picture_judge import PictureJudge
from underpaint.runtime.evaluation.quality import Reading, frechet_distance, frechet_floor, read_right
from underpaint.runtime.evaluation.two_sample import (
    LEAST_PROMPTS,
    has_features,
    picture_features,
    two_sample_test,
)
from underpaint.runtime.models import OpenModels
from underpaint.zoo.textured_prompts import MAIN_ACCURACY, TEXTURED_SLOTS


class PictureViews:
    """Caches pictures, the judge's readings of them and the features that a classifier sees.

    readings: known readings by tokens; other pictures are decoded and read. compared: whether to compare pictures as
    sets, with a classifier and the Fréchet distance, which takes seconds. likelihood: the sampling parameters of the
    drawings, if the target's likelihood of the tokens is wanted; likely: known likelihoods by prompt and tokens.
    stored: returns a drawing's stored picture, which is not cached; None decodes it.
    """

    def __init__(
        self,
        pipeline: OpenModels,
        judge: PictureJudge | None,
        conditions: Sequence[Condition],
        readings: Mapping[tuple[int, ...], Reading] | None = None,
        *,
        compared: bool = False,
        likelihood: SamplingParams | None = None,
        likely: Mapping[tuple[str, tuple[int, ...]], float] | None = None,
        stored: Callable[[Drawing], Picture | None] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._conditions = {condition.caption(): condition for condition in conditions}
        self._pictures: dict[tuple[int, ...], Picture] = {}
        self._features: dict[tuple[int, ...], FloatArray] = {}
        self._likely = dict(likely or {})
        self._floors: dict[int, float | None] = {}
        self._stored = stored
        self._readings = dict(readings or {})
        self._likelihood = likelihood
        self.judge = judge if pipeline.decoder is not None else None
        self.compared = compared and pipeline.decoder is not None
        self.attributes_known = all(condition.attributes for condition in conditions)
        """Whether every condition has attributes that a judge may look for."""

    @property
    def likelihood(self) -> bool:
        """Whether the target's likelihood of the tokens is wanted."""
        return self._likelihood is not None

    def picture(self, drawing: Drawing) -> Picture:
        stored_picture = None if self._stored is None else self._stored(drawing)
        if stored_picture is not None:
            return stored_picture
        if drawing.tokens not in self._pictures:
            self._pictures[drawing.tokens] = self._pipeline.picture(drawing.tokens_array())
        return self._pictures[drawing.tokens]

    def reading(self, drawing: Drawing, judge: PictureJudge) -> Reading:
        if drawing.tokens not in self._readings:
            self._readings[drawing.tokens] = judge.read(self.picture(drawing))
        return self._readings[drawing.tokens]

    def features(self, drawing: Drawing) -> FloatArray:
        """Features [F] for the classifier; those of plain AR are cached, as every method is compared with them."""
        if drawing.tokens in self._features:
            return self._features[drawing.tokens]
        features: FloatArray = picture_features(self.picture(drawing)[None].astype(np.float64))[0]
        if drawing.method == BASELINE:
            self._features[drawing.tokens] = features
        return features

    def frechet_floor(self, count: int, judge: PictureJudge) -> float | None:
        """See `quality.frechet_floor`; computed once per number of pictures."""
        if count not in self._floors:
            self._floors[count] = frechet_floor(judge.reference, count)
        return self._floors[count]

    def log_likelihood(self, drawing: Drawing) -> float:
        """The target's mean log-probability of the drawing's tokens; call it only if `likelihood` is true."""
        assert self._likelihood is not None
        key = drawing.prompt, drawing.tokens
        if key not in self._likely:
            condition = self._conditions[drawing.prompt]
            self._likely[key] = image_log_likelihood(
                self._pipeline, condition, drawing.tokens_array(), self._likelihood
            )
        return self._likely[key]

    def read_right(self, drawn: Sequence[Drawing], judge: PictureJudge) -> dict[str, BoolArray]:
        readings = [self.reading(drawing, judge) for drawing in drawn]
        attributes = [self._conditions[drawing.prompt].attributes for drawing in drawn]
        return read_right(readings, attributes)

    def attribute_log_probability(self, drawn: Sequence[Drawing], judge: PictureJudge) -> FloatArray | None:
        """Log-probabilities of the attributes, [drawings] in nats; None if a reading was recorded without scores."""
        likely = []
        for drawing in drawn:
            scores = self.reading(drawing, judge).scores
            if not scores:
                return None
            attributes = self._conditions[drawing.prompt].attributes
            places = {slot: TEXTURED_SLOTS[slot].index(value) for slot, value in attributes.items()}
            likely.append(attribute_log_probability({slot: one[None] for slot, one in scores.items()}, places)[0])
        return np.array(likely)


def picture_quality(drawn: list[Drawing], baseline: list[Drawing], views: PictureViews) -> dict[str, Any]:
    """Return the figures of a method's pictures, and their differences to the baseline, named as in `ReportRow`.

    Figures without their judge, decoder or likelihood are left out.

    Args:
        drawn: The method's drawings, ordered by seed, then by prompt.
        baseline: The baseline's drawings in the same order.
        views: The pictures of both, with their readings and likelihoods.
    """
    seeds = len({one.seed for one in drawn})
    prompts = len(drawn) // seeds
    figures: dict[str, Any] = {}

    def compare(name: str, base: FloatArray | BoolArray, values: FloatArray | BoolArray) -> None:
        difference = paired_difference(base.reshape(seeds, -1), values.reshape(seeds, -1))
        figures.update({name: float(values.mean()), **difference.named(f"{name}_over_ar")})

    if views.compared and prompts >= LEAST_PROMPTS and has_features(*views.picture(drawn[0]).shape[:2]):
        values, base = (_by_prompt([views.features(one) for one in side], seeds) for side in (drawn, baseline))
        figures |= two_sample_test(base, values).named("auc")
    if views.likelihood:
        values, base = (np.array([views.log_likelihood(one) for one in side]) for side in (drawn, baseline))
        compare("log_likelihood", base, values)
    judge = views.judge
    if judge is None:
        return figures
    distinct = {(one.prompt, one.tokens): one for one in drawn}
    features = np.stack([views.reading(one, judge).features for one in distinct.values()])
    figures["frechet_pictures"] = len(features)
    if views.compared:
        distance = frechet_distance(features, judge.reference.features_a) if len(features) > 1 else None
        figures |= {"frechet_distance": distance, "frechet_floor": views.frechet_floor(len(features), judge)}
    if not views.attributes_known:
        return figures
    main = MAIN_ACCURACY
    right, base_right = views.read_right(drawn, judge), views.read_right(baseline, judge)[main]
    compare("accuracy", base_right, right[main])
    figures["prompt_accuracy"] = figures.pop("accuracy")
    figures["attribute_accuracy"] = {slot: float(hits.mean()) for slot, hits in right.items() if slot != main}
    likely, base_likely = (views.attribute_log_probability(side, judge) for side in (drawn, baseline))
    if likely is not None and base_likely is not None:
        compare("attribute_log_probability", base_likely, likely)
    return figures


def _by_prompt(features: Sequence[FloatArray], seeds: int) -> FloatArray:
    """Reorder features that are stored seed after seed to [prompts, seeds, F]."""
    rows = np.stack(features)
    return rows.reshape(seeds, -1, rows.shape[-1]).transpose(1, 0, 2)
