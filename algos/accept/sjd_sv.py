"""SJD-SV: judges runs of drafts with rising target probability together, by a joint ratio."""

from dataclasses import dataclass
from typing import Annotated

from underpaint.algos.accept.spec import RULES, RuleSpec, every_combination, require_chain, require_drawn
from underpaint.algos.accept.walk import MOST_RATIO, excess, normalised, proposal_distributions
from underpaint.algos.arrays import FloatArray
from underpaint.algos.batched.chains import BatchedChain, RunsJudge
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.registry import MOST_NODES, Nodes, PositiveShare, Tune, check_bounds
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class SubsequenceVerification:
    """Judge each run of non-decreasing p(x_i) at once: keep it with probability min(1, prod p(x_i) / q(x_i)).

    arXiv 2609.13245. The product covers the shortest end of the run that holds `share` of its sum of p(x_i); earlier
    drafts are kept without a test. After a failure, the product without its last draft is tried, and so on. After the
    kept drafts, the token is drawn from norm([p - q]_+). Each try has its own flip.

    Attributes:
        share: alpha > 0; 1 judges whole runs (without drafts of p = 0 at their start).
        longest: The largest number of drafts in a run; 1 is speculative sampling, as in SJD.
    """

    share: Annotated[PositiveShare, Tune((0.5, 0.7, 0.8, 0.9, 1.0))] = 0.8
    longest: Nodes = MOST_NODES

    def __post_init__(self) -> None:
        check_bounds("sjd_sv", self)

    def judged_from(self, likely: list[float], start: int, end: int) -> int:
        """Return the first draft of the run start..end that is judged; likely: p(x_i) by node."""
        sums = [0.0]
        for node in range(end, start - 1, -1):
            sums.append(sums[-1] + likely[node])
        return end - next(place for place, mass in enumerate(sums[1:]) if mass >= self.share * sums[-1])

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, "iid")
        require_chain(tree)
        last = tree.size - 1
        targets = [normalised(probs[node]) for node in range(last)]
        drafts = [next(proposal_distributions(tree, node, [node + 1])).copy() for node in range(last)]
        likely = [0.0, *(float(row[tree.tokens[node + 1]]) for node, row in enumerate(targets))]
        start = 1
        while start <= last:
            end = start
            while end < last and end - start + 1 < self.longest and likely[end + 1] >= likely[end]:
                end += 1
            first = self.judged_from(likely, start, end)
            ratios = [1.0]
            for node in range(first, end + 1):
                drafted = float(drafts[node - 1][tree.tokens[node]])
                ratios.append(min(MOST_RATIO, ratios[-1] * likely[node] / drafted))
            stop = end
            while stop >= first and not chance.flip(ratios[stop - first + 1], At(Role.ACCEPT, stop)):
                stop -= 1
            if stop < end:
                rest = excess(targets[stop], drafts[stop])
                residual = rest if rest.any() else targets[stop]
                return Verdict(tuple(range(1, stop + 1)), chance.draw(residual, At(Role.RESIDUAL, stop)))
            start = end + 1
        return Verdict(tuple(range(1, last + 1)), chance.draw(probs[last], At(Role.BONUS, last)))


SPEC = RULES.register(
    RuleSpec(
        name="sjd_sv",
        device="underpaint.runtime.device.kernels.walk_runs:runs_walk",
        make=SubsequenceVerification,
        promise="unbounded",
        drawn=frozenset({"iid"}),
        source="arXiv 2609.13245 (SJD-SV), by a public summary of its equations; no released code",
        bound="none: drafts at the start of a run are kept unjudged",
        deviations="`longest` is ours. Whether a shortened product has a flip of its own is open; here it has",
        needs_chain=True,
        looks_ahead=True,
        batched=lambda rule, drawn: BatchedChain(RunsJudge(rule.share, rule.longest)),
        lossless_when=lambda settings: settings["longest"] == 1,
        examples=(*every_combination(share=(0.5, 0.8, 1.0)), {"longest": 1}),
    )
)
