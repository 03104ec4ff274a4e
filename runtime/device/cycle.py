"""One cycle of a batch as a fixed sequence of launches: draft, noise, target pass, verdict and commit.

Nothing is read back. Drafting takes more launches than all other parts; one CUDA graph replays them all (see `runner`).
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, cast

import torch
from torch import Tensor

from underpaint.algos.accept.spec import spec_of
from underpaint.algos.draft.choice import NOTHING
from underpaint.algos.protocols import Grid, Rule
from underpaint.algos.rows import SamplingParams
from underpaint.algos.tree import Drawn
from underpaint.runtime.device.chosen_growth import ChosenGrowth
from underpaint.runtime.device.folder import EmbeddedBatch
from underpaint.runtime.device.forms import BatchCycle, BatchSizes, DeviceForm, Layout
from underpaint.runtime.device.forwards import DeviceDecoder, gather_rows
from underpaint.runtime.device.growth import Growth, Plan
from underpaint.runtime.device.kernels.commit import advance
from underpaint.runtime.device.kernels.layout import prepare
from underpaint.runtime.device.kernels.lines import LineBuffers, commit_lines, lay_lines
from underpaint.runtime.device.kernels.probs import probs
from underpaint.runtime.device.kernels.tree_meta import MOST_NODES, tree_meta
from underpaint.runtime.device.kernels.uniforms import UniformBuffers
from underpaint.runtime.device.kernels.walk import Shape
from underpaint.runtime.device.low_models import LowDraft
from underpaint.runtime.device.ranked_growth import RankedGrowth
from underpaint.runtime.device.rules import device_rule
from underpaint.runtime.device.state import Envelope, State, begin_images

ALONE: Final = Envelope(1, 0, 1, 1, 1)
"""Envelope of a pass without draft tokens."""


@dataclass(frozen=True, slots=True)
class DraftForm(DeviceForm):
    """A method in which each cycle verifies one draft tree.

    `draft_sampler` is the drafter's sampler; None takes the target's. A rule that decides by the likeliest token at
    temperature 0 reads distributions at temperature 1.
    """

    counts_drafts: ClassVar[bool] = True

    rule: Rule
    sampler: SamplingParams
    draft_sampler: SamplingParams | None = None

    @abstractmethod
    def plan(self, grid: Grid, vocab_size: int, max_nodes: int) -> Plan | None:
        """Return how the method's trees grow and their envelope; None if the method drafts nothing."""

    def judged(self, drawn: Drawn, children: int) -> tuple[tuple[Rule, Drawn, int], ...]:
        """Return each rule with the kind of trees that it judges, and the most children of a node.

        Args:
            drawn: How the siblings of the largest tree are drawn.
            children: The most children of a node of the largest tree.
        """
        return ((self.rule, drawn, children),)

    def layout(self, grid: Grid, vocab_size: int, line_token: int | None, batch: int) -> Layout:
        plan = self.plan(grid, vocab_size, most_nodes(MOST_NODES, line_token))
        if plan is None:
            return Layout(ALONE)
        if plan.most_images is not None and batch > plan.most_images:
            raise ValueError(
                f"device: expected batches of at most {plan.most_images} image, as each chooses a program of its own, "
                f"got {batch}; set --batch {plan.most_images}"
            )
        return Layout(plan.envelope, plan.image_bytes, plan.most_images)

    def check(self, grid: Grid, vocab_size: int, line_token: int | None) -> None:
        plan = self.plan(grid, vocab_size, most_nodes(MOST_NODES, line_token))
        envelope, drawn = (ALONE, _covered(self.rule)) if plan is None else (plan.envelope, plan.drawn)
        for rule, kind, children in self.judged(drawn, envelope.children):
            sizes = Shape(1, envelope.nodes, vocab_size, kind, envelope.levels, children)
            device_rule(rule, sizes, torch.device("cpu"))

    def cycle(
        self, target: DeviceDecoder, drafter: DeviceDecoder | None, sizes: BatchSizes, low: LowDraft | None = None
    ) -> BatchCycle:
        return DeviceCycle(target, drafter, self, *sizes[:4], line_token=sizes.line_token)


class DeviceCycle(BatchCycle):
    """The program of a batch of draft trees: call `begin` once, then `run` until every status is above 0."""

    def __init__(
        self,
        target: DeviceDecoder,
        drafter: DeviceDecoder | None,
        method: DraftForm,
        grid: Grid,
        prefix: int,
        batch: int,
        device: torch.device,
        max_nodes: int = MOST_NODES,
        line_token: int | None = None,
    ) -> None:
        """Allocate a batch.

        Args:
            target: The target.
            drafter: The drafter; None without one.
            method: The method's form.
            grid: Grid of the image's cells.
            prefix: Largest number of condition positions.
            batch: Number of batch slots.
            device: Device of the models.
            max_nodes: Largest number of nodes of a tree, root included; see `most_nodes`.
            line_token: Token that `target` embeds after every line except the last; None for none.

        Raises:
            ValueError: The method needs a drafter, and there is none.
        """
        plan = method.plan(grid, target.config.vocab_size, most_nodes(max_nodes, line_token))
        if plan is not None and plan.by_target:
            drafter = None
        elif plan is not None and drafter is None:
            raise ValueError("device: this policy drafts, and no drafter was given")
        envelope = ALONE if plan is None else plan.envelope
        self.grid, self.envelope, self.method = grid, envelope, method
        self._target = target
        drafting = None if plan is None or drafter is None else drafter.config
        lines = 0 if line_token is None else grid.height - 1
        sizes = (batch, envelope, grid.cells, prefix, target.config, drafting, target.rows)
        places = target.places, None if drafter is None else drafter.places
        draft_dtype = None if drafter is None else drafter.dtype
        self.state = State.allocate(*sizes, target.dtype, device, lines, places, draft_dtype)
        self._line_token, self._lines = line_token, None if line_token is None else _line_buffers(self.state)
        drawn = _covered(method.rule) if plan is None else plan.drawn
        shape = Shape(batch, envelope.nodes, target.config.vocab_size, drawn, envelope.levels, envelope.children)
        self._growth: Growth | None = None
        if plan is not None:
            self._growth = plan.make(self.state, drafter or target, method.draft_sampler or method.sampler)
        self.chooser = cast(ChosenGrowth, self._growth) if plan is not None and plan.chooses else None
        if self.chooser is None:
            self._decide = device_rule(method.rule, shape, device)
        else:
            self.chooser.add_rules(method.rule, device)
            self._decide = self.chooser.decide
        self._live = prefix + grid.cells // 2
        self._features = torch.empty(0, dtype=target.dtype, device=device)
        """[R, T, F]: target features of the last pass; each captured program has its own buffer."""

    def begin(
        self,
        condition: Tensor,
        seeds: Tensor,
        images: Tensor,
        hidden: Tensor | None = None,
        low: EmbeddedBatch | None = None,
    ) -> None:
        """Take in conditions and decide every image's first token by the rule, as cycle 0; see `BatchCycle`."""
        tree = self.state.tree
        if self.chooser is not None:
            self.chooser.choice = NOTHING
        tree.counts.fill_(1)
        tree.parents[:, 0] = -1
        self._features = begin_images(self.state, self._target, condition, seeds, images, hidden).contiguous()
        self._prepare()
        self._lay_out_tree()
        self._find_probs()
        self._judge()
        self._advance()
        if self._growth is not None:
            self._growth.begin()

    def run(self) -> None:
        """Run one cycle of every image that is not done; see `BatchCycle`. Nothing is read back."""
        for _, part in self.parts():
            part()

    def parts(self) -> list[tuple[str, Callable[[], None]]]:
        """Return the parts of a cycle in order, each with its name.

        The parts share data only through the state and, from the target pass on, through the target's features.
        """
        growth, state = self._growth, self.state
        parts: list[tuple[str, Callable[[], None]]] = [("prepare", self._prepare)]
        if growth is not None:
            parts.append(("draft", partial(growth.grow, state)))
        if growth is None or not growth.lays_out:
            parts.append(("tree", self._lay_out_tree))
        parts.append(("target", self._pass_tree))
        parts += [("probabilities", self._find_probs), ("verdict", self._judge)]
        parts += [("commit", self._commit), ("commit", self._advance)]
        if growth is not None:
            parts.append(("commit", partial(growth.observe, state)))
        return parts

    def _prepare(self) -> None:
        state = self.state
        depths = totals = state.lengths.levels  # zeros
        if self._growth is not None:
            depths, totals = self._growth.limits.depths, self._growth.limits.totals
        noise = UniformBuffers(state.tree.uniforms, *state.noise, state.roles)
        tokens = state.tree.tokens if self._growth is None else None
        prepare(state.verdicts.status, state.progress, depths, totals, state.lengths, noise, tokens)

    def _pass_tree(self) -> None:
        state = self.state
        if self._lines is None:
            nodes = self._nodes()
            parts = (part.narrow(1, 0, nodes) for part in (state.tree.tokens, state.positions, state.tree.masks))
            self._features = self._passed(*parts)
        else:
            assert self._line_token is not None
            width, token = self.grid.width, self._line_token
            lay_lines(state.tree, state.positions, state.progress, state.lengths, self._lines, width, token)
            features = self._passed(self._lines.tokens, self._lines.positions, self._lines.masks)
            self._features = gather_rows(features, self._lines.outputs, self._target.rows)

    def _nodes(self) -> int:
        """Return the number of nodes of the target pass."""
        if self.chooser is None or self._lines is not None:
            return self.envelope.nodes
        return self.chooser.program[1]

    def _passed(self, tokens: Tensor, positions: Tensor, masks: Tensor) -> Tensor:
        """Return the target's features [R, T, F] of T new positions."""
        attend = self.state.target_cache.attend(0, self.state.lengths.target, masks.unsqueeze(2), self._live)
        return self._target.hidden(self._target.embed(tokens), positions, attend)

    def _commit(self) -> None:
        state, path, counts = self.state, self.state.verdicts.path, self.state.verdicts.taken
        most = min(state.envelope.levels + 1, self._nodes())
        if self._lines is not None:
            commit_lines(state.verdicts, self._lines)
            path, counts, most = self._lines.path, self._lines.counts, 2 * most
        state.target_cache.commit(path, counts, state.lengths.target, most, walked=True)

    def _lay_out_tree(self) -> None:
        state, levels = self.state, max(1, self.state.envelope.levels)
        tree_meta(state.tree, state.layout, levels, self.grid.cells - 1)

    def _find_probs(self) -> None:
        state, tree = self.state, self.state.tree
        target = self._target
        logits = target.logits(self._features).view(target.rows, state.batch, -1, target.config.vocab_size)
        count = logits.shape[2]
        finite = state.verdicts.finite.narrow(1, 0, count)
        probs(logits, tree.probs, state.support, finite, tree.counts, self.method.sampler)

    def _judge(self) -> None:
        self._decide(self.state.tree, self.state.depths, self.state.verdicts)

    def _advance(self) -> None:
        state, growth = self.state, self._growth
        adapting = growth.adapting if isinstance(growth, RankedGrowth) else None
        moved = (state.tree, state.depths, state.verdicts, state.progress)
        advance(*moved, self._features, state.pending_features, adapting)


def most_nodes(max_nodes: int, line_token: int | None) -> int:
    """Return the most nodes of a tree; with end-of-line tokens, as many as let one mask word cover both kinds."""
    return max_nodes if line_token is None else min(max_nodes, MOST_NODES // 2)


def _line_buffers(state: State) -> LineBuffers:
    nodes, device = state.envelope.nodes, state.roles.device

    def whole(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    batch, twice = state.batch, 2 * nodes
    tokens, positions, masks, path = (whole(batch, twice) for _ in range(4))
    return LineBuffers(tokens, positions, masks, whole(batch, nodes), path, whole(batch))


def _covered(rule: Rule) -> Drawn:
    """Return a kind of tree that the rule covers; over a root alone, every kind is the same."""
    spec = spec_of(rule)
    return "top_k" if spec is None else min(spec.drawn)
