"""Kernels that are not walks, each against its NumPy reference, one of them at full size."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.runtime.device.grown import given_masses
from underpaint.algos.chance import Philox, Role
from underpaint.algos.draft.top_tokens import top
from underpaint.algos.draft.tree_builder import point_tree
from underpaint.algos.rows import SamplingParams, sampling_probs
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.decoder import Decoder, causal_bias
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.forwards import Cache, causal_masks
from underpaint.runtime.device.kernels import likeliest
from underpaint.runtime.device.kernels.commit import Handed, commit_cache
from underpaint.runtime.device.kernels.draft_inputs import embed
from underpaint.runtime.device.kernels.growth import Candidates, ExpandedRows, grow_level
from underpaint.runtime.device.kernels.layers import ADD, product
from underpaint.runtime.device.kernels.layout import Lengths, Progress, prepare
from underpaint.runtime.device.kernels.likeliest import (
    OCTAVE,
    WIDE_OCTAVE,
    FiniteMarks,
    RowScratch,
    few_largest,
    lanes_of,
)
from underpaint.runtime.device.kernels.probs import probs
from underpaint.runtime.device.kernels.tree_meta import TreePlaces, tree_meta
from underpaint.runtime.device.kernels.uniforms import UniformBuffers
from underpaint.runtime.device.kernels.walk import BatchTree
from underpaint.runtime.device.launch import kernel, launch, tl
from underpaint.strategies import distributions, shapes


def whole(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def device_probs(logits: np.ndarray, sampler: SamplingParams) -> tuple[np.ndarray, list[int], list[int]]:
    given_logits = torch.from_numpy(logits)[:, None]
    nodes, vocab_size = logits.shape[1:]
    out = torch.zeros(1, nodes, vocab_size)
    support, finite = torch.ones(2, 1, nodes, dtype=torch.int32)
    probs(given_logits, out, support, finite, whole(nodes), sampler)
    return out.numpy()[0], support[0].tolist(), finite[0].tolist()


def test_uniforms_are_the_reference_s_bit_for_bit() -> None:
    keys = ((7, 5, 0), (2**40, 9, 1000), (2**62, 2**33, 3))
    seeds, images, cycles = (whole(*column) for column in zip(*keys, strict=True))
    out = torch.zeros(3, 3, 70, dtype=torch.float64)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64)

    alone = (zeros(3), zeros(3), zeros(3, 1), zeros(3), zeros(3, 4), zeros(3, 4, 3))
    progress = Progress(zeros(3), cycles, *alone)
    lengths = Lengths(*(zeros(3) for _ in range(5)), zeros(3, 1), zeros(1, 3, 1), zeros(1, 3))
    buffers, tokens = UniformBuffers(out, seeds, images, whole(1, 2, 6)), whole(7, 7, 7)[:, None]
    prepare(zeros(3), progress._replace(roots=whole(4, 0, 9)), zeros(3), zeros(3), lengths, buffers, tokens)
    assert tokens.tolist() == [[4], [0], [9]]
    for place, (seed, image, cycle) in enumerate(keys):
        for turn, role in enumerate((Role.ACCEPT, Role.RESIDUAL, Role.PATH)):
            np.testing.assert_array_equal(out[place, turn], Philox(seed, image).uniforms(cycle, role, 70))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "count", "width", "columns"), [(1, 1, 16, 5), (2, 3, 40, 33), (2, 8, 300, 16)])
def test_a_product_adds_to_what_is_there(dtype: torch.dtype, rows: int, count: int, width: int, columns: int) -> None:
    """Summed in float32 and rounded once, as PyTorch's."""
    generator = torch.Generator().manual_seed(width)
    mixed, weight, hidden = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in ((rows, count, width), (columns, width), (rows, count, columns))
    )
    expected = (hidden.double() + mixed.double() @ weight.double().T).to(dtype)
    product(mixed, None, weight, None, hidden, ADD.value, after=weight)
    torch.testing.assert_close(hidden, expected, rtol=1e-5 if dtype == torch.float32 else 2**-10, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("batch", "count"), [(1, 1), (3, 7)])
def test_embeddings_are_pytorch_s(rows: int, batch: int, count: int) -> None:
    codes = torch.arange(12.0 * 9).view(9, 12).bfloat16()
    tokens = (torch.arange(2 * batch * count) % 9).view(batch, 2 * count)[:, ::2]  # every other column of a buffer
    torch.testing.assert_close(embed(tokens, codes, rows), codes[tokens.repeat(rows, 1)], rtol=0, atol=0)


@settings(max_examples=15)
@given(data=st.data())
def test_distributions_are_the_reference_s(data: st.DataObject) -> None:
    vocab_size, rows = data.draw(st.sampled_from([2, 5, 13])), data.draw(st.sampled_from([1, 2]))
    halves = st.lists(st.sampled_from([-3.0, -0.5, -0.0, 0.0, 0.5, 2.0]), min_size=vocab_size, max_size=vocab_size)
    logits = np.array([[data.draw(halves)] for _ in range(rows)], dtype=np.float32)
    sampler = SamplingParams(
        guidance=data.draw(st.sampled_from([0.0, 1.0, 4.0])),
        temperature=data.draw(st.sampled_from([0.0, 0.7, 1.0])),
        top_k=data.draw(st.integers(0, vocab_size)),
        top_p=data.draw(st.sampled_from([0.613, 1.0])),
    )
    actual, support, finite = device_probs(logits, sampler)
    expected = sampling_probs(logits, sampler)
    np.testing.assert_allclose(actual, expected, atol=2e-7)
    assert ((actual > 0) == (expected > 0)).all()
    assert support == (expected > 0).sum(axis=1).tolist()
    assert finite == [1]


def test_distributions_at_full_size() -> None:
    logits = (3 * np.random.default_rng(0).standard_normal((2, 1, 16384))).astype(np.float32)
    actual, support, _ = device_probs(logits, SamplingParams(guidance=4.0, top_k=1000))
    expected = sampling_probs(logits, SamplingParams(guidance=4.0, top_k=1000))
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert support == [1000]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_not_finite_is_told(bad: float) -> None:
    logits = np.zeros((1, 2, 5), dtype=np.float32)
    logits[0, 1, 3] = bad
    assert device_probs(logits, SamplingParams())[2] == [1, 0]


def test_masks_of_the_least_number_are_finite_though_their_sum_is_not() -> None:
    logits = np.zeros((1, 1, 5), dtype=np.float32)
    logits[0, 0, 2:] = np.finfo(np.float32).min
    actual, support, finite = device_probs(logits, SamplingParams())
    assert (support, finite) == ([2], [1])
    np.testing.assert_array_equal(actual, [[0.5, 0.5, 0.0, 0.0, 0.0]])


def test_a_later_level_does_not_clear_what_was_told() -> None:
    out, support, finite = torch.zeros(1, 1, 3), *torch.ones(2, 1, 1, dtype=torch.int32)
    for bad in (float("nan"), 0.0):
        probs(torch.full((1, 1, 1, 3), bad), out, support, finite, whole(1), SamplingParams())
    assert finite.tolist() == [[0]]


@settings(max_examples=10)
@given(data=st.data())
def test_likeliest_tokens_are_the_reference_s(data: st.DataObject) -> None:
    vocab_size, count = data.draw(st.sampled_from([3, 9])), data.draw(st.integers(1, 3))
    rows = np.stack([data.draw(distributions(vocab_size)) for _ in range(2)]).astype(np.float32)
    wide = max(2, count)

    def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    scores = torch.ones(2, 1, wide, dtype=torch.float64)
    front = ExpandedRows(zeros(2, 1, wide), zeros(2, 1, wide), zeros(2, 1, wide), scores, zeros(2, 1, wide, 1))
    size = (1, 2 * wide * count)
    candidates = Candidates(zeros(*size), zeros(*size), zeros(*size, dtype=torch.float64), zeros(1, 2))
    tree, layout = BatchTree(*(zeros(1, 2) for _ in range(10))), TreePlaces(whole(1), zeros(1, 2), zeros(1, 2))
    marks, given_rows = FiniteMarks(zeros(1, wide, dtype=torch.int32), wide), torch.from_numpy(rows)[None, None]
    each = (whole(2), whole(wide), whole(1), whole(1), whole(0))
    with (
        patch.object(likeliest, "GROUP", data.draw(st.sampled_from([1, 2, 4, 16]))),
        patch.object(likeliest, "row_masses", given_masses),
    ):
        scratch = RowScratch.of(1, wide, vocab_size, lanes_of(count), torch.device("cpu"))
        grow_level(given_rows, SamplingParams(), scratch, marks, *each, front, candidates, tree, layout, 0, 9)
    expected = top(rows, count)
    tokens, top_scores = (part.view(2, wide, count)[0, :2].numpy() for part in (candidates.tokens, candidates.scores))
    assert (top_scores == np.minimum(expected.probs, 1)).all()
    assert (tokens == expected.tokens)[top_scores > 0].all()
    assert scratch.arrivals.item() == 0


@kernel
def few_largest_kernel(keys, out, least, K, N, WIDE: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr) -> None:
    place = tl.arange(0, BLOCK)
    given_keys = tl.load(keys + place, place < N, other=0)
    lowest, step = tl.full((), 0, given_keys.dtype) + least, WIDE_OCTAVE if WIDE else OCTAVE
    mask, into, size, _ = few_largest(given_keys, lowest, K, MOST, step)
    tl.store(out + into, place, mask)
    tl.store(out + MOST, size)


@settings(max_examples=40)
@given(data=st.data(), wide=st.booleans())
def test_a_search_finds_the_largest_numbers_and_of_equal_ones_the_first(data: st.DataObject, wide: bool) -> None:
    """As many as there is room for at most, side by side in their order."""
    kind = np.float64 if wide else np.float32
    number = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(2.0**-100, 1.0, width=32))
    numbers = np.array(data.draw(st.lists(number, min_size=1, max_size=40)), dtype=kind)
    most = data.draw(st.sampled_from([2, 4, 16]))
    count = data.draw(st.integers(1, most))
    keys = torch.from_numpy(numbers.view(np.int64 if wide else np.int32))
    out = torch.full((most + 1,), -1, dtype=torch.int32)
    sizes = {"WIDE": wide, "MOST": most, "BLOCK": 64}
    launch(few_largest_kernel, (1,), 0, keys, out, 1, count, numbers.size, **sizes)
    falling = [int(place) for place in np.argsort(-numbers, kind="stable") if numbers[place] > 0]
    size = int(out[most])
    assert min(count, len(falling)) <= size <= most
    assert out[:most].tolist() == [*sorted(falling[:size]), *[-1] * (most - size)]


@settings(max_examples=15)
@given(shape=shapes(9), cell=st.integers(1, 12))
def test_trees_are_described_as_the_reference_does(shape: tuple[int, ...], cell: int) -> None:
    parents = np.array([-1, *shape])
    tree = point_tree(np.zeros(parents.size, dtype=np.int64), parents, 5)
    size, nodes = parents.size, 12
    padded_parents = torch.full((1, nodes), 3)
    padded_parents[0, :size] = torch.from_numpy(parents)
    positions, depths, first, sibling, masks = (torch.zeros(1, nodes, dtype=torch.int64) for _ in range(5))
    none = whole(0)
    laid = BatchTree(none, first, sibling, masks, padded_parents, whole(size), none, none, none, none)
    tree_meta(laid, TreePlaces(whole(cell), positions, depths), tree.depth, 15)
    assert depths[0, :size].tolist() == tree.depths().tolist()
    assert positions[0, :size].tolist() == np.minimum(cell - 1 + tree.depths(), 15).tolist()
    seen = (masks[0, :size, None] >> torch.arange(size)) & 1
    assert (seen.numpy() == tree.visible()).all()
    for node, below in enumerate(tree.children()):
        assert first[0, node] == (below[0] if below else -1)
        for child, following in zip(below, [*below[1:], -1], strict=False):
            assert sibling[0, child] == following


def test_accepted_slots_go_behind_the_live_cache() -> None:
    slots = torch.arange(2 * 2 * 4 * 3, dtype=torch.float32).view(1, 2, 2, 1, 4, 3)
    cache = torch.full((1, 2, 2, 1, 6, 3), -1.0)
    features, out = torch.randn(2, 3, 5), torch.zeros(2, 1, 5)
    handed = Handed(features, out, whole(2, 0), 3, 5)
    path = torch.tensor([[2, 3, -1], [1, -1, -1]])
    commit_cache(cache, slots, path, whole(3, 0), whole(2, 1), 3, walked=True, handed=handed)
    expected = torch.full((1, 2, 2, 1, 6, 3), -1.0)
    expected[:, :, 0, :, 2:5] = slots[:, :, 0][:, :, :, [0, 2, 3]]
    assert torch.equal(cache, expected)
    assert torch.equal(out, torch.stack((features[0, 2:], features[1, :1])))


CONFIG = DecoderConfig(dim=24, layers=2, heads=2, hidden=16, vocab_size=11, grid_side=4, prefix=3, cond_ids=4)
FAMILIES = {
    "llamagen": CONFIG,
    "chosen words": replace(CONFIG, rope_prefix="identity"),
    "chameleon": replace(CONFIG, rope="line", qk_norm=True, post_norm=True),
    "learnt": replace(CONFIG, rope="none", qkv_bias=True),
    "drafter": replace(CONFIG, layers=1, drafter=True, condition="none", cond_ids=0),
    "released drafter": replace(
        CONFIG, layers=1, drafter=True, condition="none", cond_ids=0, first_norm=False, final_norm=False, fc_bias=False
    ),
    "shared keys": replace(CONFIG, rope="line", qk_norm=True, heads=6, kv_heads=2, head_dim=8),
}


def model_of(config: DecoderConfig) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(0.3 * torch.randn(weights.shape) + (weights.dim() == 1))
    return model.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_pass_is_the_model_s(family: str) -> None:
    tree_pass_is_the_model_s(model_of(FAMILIES[family]))


@torch.no_grad()
def tree_pass_is_the_model_s(model: Decoder) -> None:
    """Two images of unequal length and unequal trees; stale slots and stale cache lie around them."""
    decoder = DecoderForward(model, 1)
    tokens = torch.tensor([[1, 4, 2, 6, 3], [5, 0, 7, 2, 9]])
    parents = ([-1, 0, 0, 1, 2], [-1, 0, 1, 2, 2])
    lengths, layers = whole(3, 5), model.config.layers
    cache = Cache(decoder.config, 2, 9, 7, torch.float32, torch.device("cpu"))
    cache.slots.normal_()
    cache.committed.normal_()
    masks = torch.zeros(2, 5, 1, dtype=torch.int64)
    positions, expected = torch.zeros(2, 5, dtype=torch.int64), []
    features = torch.randn(2, 5, 24) if model.config.drafter else None
    for image, length in enumerate(lengths.tolist()):
        tree = point_tree(tokens[image].numpy(), np.array(parents[image]), 11)
        bits = tree.visible() @ (1 << np.arange(5))
        masks[image, :, 0] = torch.from_numpy(bits.astype(np.int64))
        positions[image] = torch.from_numpy(length - 1 + tree.depths())
        among = torch.where(torch.from_numpy(tree.visible().copy()), 0.0, -30000.0)
        bias = torch.cat([torch.zeros(5, length), among], dim=1)
        past = [cache.committed[layer, :, image : image + 1, :, :length] for layer in range(layers)]
        given_features = None if features is None else features[image : image + 1]
        step = model.step(
            tokens[image : image + 1],
            positions[image],
            bias,
            [part[0] for part in past],
            [part[1] for part in past],
            features=given_features,
        )
        expected.append(step)
    attend = cache.attend(0, lengths, masks, 4)
    if features is None:
        hidden_states = decoder.hidden(decoder.embed(tokens), positions, attend)
    else:  # the features lie in another order, and the tokens name those before them
        orders = torch.tensor([[3, 0, 4, 1, 2], [5, 2, 0, 1, 3]])  # places among six, one of them unused
        shuffled_features = torch.full((2, 6, 24), 9.0).scatter(1, orders[:, :, None].expand(-1, -1, 24), features)
        hidden_states = decoder.draft_hidden(tokens, shuffled_features, orders, positions, attend)
    torch.testing.assert_close(hidden_states, torch.cat([step.features for step in expected]), atol=2e-5, rtol=1e-5)
    logits = decoder.logits(hidden_states)
    torch.testing.assert_close(logits, torch.cat([step.logits for step in expected]), atol=5e-5, rtol=1e-5)
    for layer in range(layers):
        keys = torch.cat([step.keys[layer] for step in expected])
        torch.testing.assert_close(cache.slots[layer, 0, :, :, :5], keys, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["llamagen", "chameleon", "learnt", "shared keys"])
def test_a_condition_is_taken_in_as_the_model_does(family: str) -> None:
    condition_is_taken_in_as_the_model_does(model_of(FAMILIES[family]))


@torch.no_grad()
def condition_is_taken_in_as_the_model_does(model: Decoder) -> None:
    decoder = DecoderForward(model, 1)
    cache = Cache(decoder.config, 2, 9, 7, torch.float32, torch.device("cpu"))
    condition, positions = torch.randn(2, 3, 24), torch.arange(-3, 0)
    hidden_states = decoder.hidden(condition.clone(), positions.repeat(2, 1), cache.prefill())
    empty = model.empty_cache(2)
    step = model.step_rows(condition, positions, causal_bias(3), empty, empty)
    torch.testing.assert_close(hidden_states, step.features, atol=2e-5, rtol=1e-5)
    for layer in range(2):
        torch.testing.assert_close(cache.committed[layer, 0, :, :, :3], step.keys[layer], atol=2e-5, rtol=1e-5)


def test_masks_of_more_slots_than_one_word_holds() -> None:
    masks = causal_masks(70, 2, torch.device("cpu"))
    for place in (0, 62, 63, 64, 69):
        bits = [(int(masks[place, slot // 64]) >> slot % 64) & 1 for slot in range(70)]
        assert bits == [1] * (place + 1) + [0] * (69 - place)
