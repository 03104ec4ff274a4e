"""Loaders: the numbers of each published form, and every bad file refused with its reason."""

import argparse
import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.models.test_golden import golden_transformer
from tests.published.checkpoints import (
    DIM,
    HEADS,
    LAYERS,
    SIDE,
    VOCAB,
    causal,
    dtok_weights,
    eagle_weights,
    noise,
    randomise,
    save_dtok,
    save_llamagen,
    save_vq,
)
from tests.published.references import dtok_reference, eagle_reference
from underpaint.models.decoder import Decoder
from underpaint.models.published import llamagen
from underpaint.models.published.files import CheckpointError, likely_kind, read_checkpoint
from underpaint.models.published.load import find, load
from underpaint.models.published.options import LoadOptions
from underpaint.models.vq import VQModel

TINY = LoadOptions(heads=HEADS, grid_side=SIDE)


def whole(decoder: Decoder, tokens: Tensor, cells: Tensor, rows: Tensor | None = None) -> Tensor:
    """Logits of one dense pass."""
    empty = decoder.empty_cache(tokens.shape[0])
    with torch.no_grad():
        return decoder.step(tokens, cells, causal(tokens.shape[1]), empty, empty, rows).logits


def test_class_conditional_llamagen_matches_the_published_golden_case(tmp_path: Path) -> None:
    case, model = golden_transformer()
    torch.save({"model": model.state_dict()}, tmp_path / "c2i.pt")
    config = model.config
    options = LoadOptions(heads=config.n_head, grid_side=config.grid_side)
    decoder = load("llamagen-c2i", tmp_path / "c2i.pt", options=options).decoder
    assert decoder is not None
    tokens = torch.from_numpy(case["tokens"])
    fed = torch.cat([torch.from_numpy(case["cond"])[:, None] + config.vocab_size, tokens[:, :-1]], dim=1)
    logits = whole(decoder, fed, torch.arange(-1, tokens.shape[1] - 1))
    torch.testing.assert_close(logits, torch.from_numpy(case["logits"]), atol=1e-4, rtol=0)


def test_text_conditional_llamagen_matches_the_module(tmp_path: Path) -> None:
    model = save_llamagen(tmp_path / "t2i.pt", captions=True)
    loaded_model = load("llamagen-t2i", tmp_path / "t2i.pt", options=TINY)
    assert loaded_model.decoder is not None
    assert loaded_model.conditioner is not None
    captions, tokens = noise(2, 3, 12), torch.arange(7)[None]
    with torch.no_grad():
        rows = loaded_model.conditioner(captions[0])
        torch.testing.assert_close(rows[:3], model.embed_condition(captions[:1])[0])
        expected, _ = model(tokens, captions[:1])
    fed = torch.cat([VOCAB + torch.arange(3)[None], tokens], dim=1)
    logits = whole(loaded_model.decoder, fed, torch.arange(-3, 7), rows)
    torch.testing.assert_close(logits[:, 2:], expected, atol=1e-4, rtol=0)


def test_tar_ar_dtok_adds_learnt_positions(tmp_path: Path) -> None:
    state = save_dtok(tmp_path / "dtok.pth")
    loaded_model = load("tar-dtok", tmp_path / "dtok.pth", options=LoadOptions(heads=HEADS, prefix=6))
    assert loaded_model.decoder is not None
    assert loaded_model.conditioner is not None
    assert loaded_model.decoder.config.grid_side == SIDE
    features, tokens = noise(6, 10), torch.arange(9)
    rows = loaded_model.conditioner(features)
    fed = torch.cat([VOCAB + torch.arange(6), tokens])[None]
    logits = whole(loaded_model.decoder, fed, torch.arange(-6, 9), rows.detach())
    torch.testing.assert_close(logits[0], dtok_reference(state, features, tokens)[0], atol=1e-4, rtol=0)


def test_grouped_heads_are_repeated(tmp_path: Path) -> None:
    grouped, state = dtok_weights(), dtok_weights()
    for index in range(LAYERS):
        name = f"layers.{index}.attention.wqkv.weight"
        query, key, value = state[name].chunk(3)
        key, value = key[: DIM // 2], value[: DIM // 2]
        grouped[name] = torch.cat([query, key, value])
        state[name] = torch.cat([query, key, key, value, value])
    save_file(grouped, tmp_path / "grouped.safetensors")
    loaded_model = load("tar-dtok", tmp_path / "grouped.safetensors", options=LoadOptions(heads=HEADS, prefix=6))
    assert loaded_model.decoder is not None
    assert loaded_model.conditioner is not None
    features, tokens = noise(6, 10), torch.arange(9)
    fed = torch.cat([VOCAB + torch.arange(6), tokens])[None]
    logits = whole(loaded_model.decoder, fed, torch.arange(-6, 9), loaded_model.conditioner(features).detach())
    torch.testing.assert_close(logits[0], dtok_reference(state, features, tokens)[0], atol=1e-4, rtol=0)


def test_a_released_drafter_predicts_features(tmp_path: Path) -> None:
    model = save_llamagen(tmp_path / "c2i.pt", captions=False)
    state = eagle_weights()
    (tmp_path / "drafter").mkdir()
    save_file(state, tmp_path / "drafter" / "model.safetensors")
    (tmp_path / "drafter" / "config.json").write_text(json.dumps({"num_attention_heads": HEADS, "rms_norm_eps": 1e-6}))
    target = ("llamagen-c2i", tmp_path / "c2i.pt")
    drafter = load("eagle-drafter", tmp_path / "drafter", target=target, target_options=TINY)
    assert drafter.decoder is not None
    tokens, features = torch.arange(9), noise(9, DIM, scale=1.0)
    empty = drafter.decoder.empty_cache(1)
    with torch.no_grad():
        expected = eagle_reference(state, model, tokens, features)
        out = drafter.decoder.step(tokens[None], torch.arange(9), causal(9), empty, empty, features=features[None])
    torch.testing.assert_close(out.features[0], expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(out.logits[0], model.output(expected), atol=1e-4, rtol=0)


def test_the_tokenizer_comes_back_whole(tmp_path: Path) -> None:
    model = save_vq(tmp_path / "vq.pt")
    tokenizer = load("vq", tmp_path / "vq.pt").vq
    assert isinstance(tokenizer, VQModel)
    assert tokenizer.config == model.config
    codes = torch.arange(16)[None] % VOCAB
    with torch.no_grad():
        torch.testing.assert_close(tokenizer.decode_codes(codes), model.decode_codes(codes))


def test_shards_and_single_files_are_one_checkpoint(tmp_path: Path) -> None:
    model = save_llamagen(tmp_path / "c2i.pt", captions=False)
    state = dict(model.state_dict())
    shards = tmp_path / "shards"
    shards.mkdir()
    names = sorted(state)
    save_file({name: state[name] for name in names[:5]}, shards / "a.safetensors")
    save_file({name: state[name] for name in names[5:]}, shards / "b.safetensors")
    index = {"weight_map": {name: "a.safetensors" if name in names[:5] else "b.safetensors" for name in names}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    one = load("llamagen-c2i", tmp_path / "c2i.pt", "bf16", TINY).decoder
    two = load("llamagen-c2i", shards, "bf16", TINY).decoder
    assert one is not None
    assert two is not None
    for name, value in one.state_dict().items():
        assert value.dtype == torch.bfloat16
        assert torch.equal(value, two.state_dict()[name])
    # PyTorch's format from before 1.6, and a parameter that lies transposed in its file.
    state["layers.0.feed_forward.w1.weight"] = state["layers.0.feed_forward.w1.weight"].T.contiguous().T
    torch.save(state, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    torch.save({name: torch.nn.Parameter(value) for name, value in state.items()}, tmp_path / "new.bin")
    for file in ("old.bin", "new.bin"):
        three = load("llamagen-c2i", tmp_path / file, "bf16", TINY).decoder
        assert three is not None
        for name, value in one.state_dict().items():
            assert torch.equal(value, three.state_dict()[name])
    (shards / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"expected the shards b\.safetensors"):
        load("llamagen-c2i", shards, options=TINY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("norm.weight"), r"norm\.weight missing"),
        (lambda state: state.update(mystery=torch.zeros(1)), "mystery not known"),
        (lambda state: state.update({"norm.weight": torch.zeros(7)}), r"norm\.weight \(7,\) for \(32,\)"),
        (
            lambda state: state.update({"layers.0.feed_forward.w3.weight": torch.zeros(48, 7)}),
            r"layers\.0\.gate_up\.weight \(.*of another shape",
        ),
        (lambda state: state.update({"layers.0.attention.wqkv.weight": torch.zeros(7, 32)}), "does not divide into"),
        (lambda state: state.pop("layers.1.ffn_norm.weight"), r"layers\.1\.ffn_norm\.weight missing"),
        (
            lambda state: state.update({"tok_embeddings.weight": torch.zeros(32)}),
            r"llamagen-c2i checkpoint: tok_embeddings\.weight \(32,\) is no matrix",
        ),
        (lambda state: state.update({"layers.0.feed_forward.w1.weight": torch.zeros(3)}), "w1.weight .* is no matrix"),
        (
            lambda state: state.update({"output.weight": torch.zeros(VOCAB, DIM, dtype=torch.int64)}),
            r"head\.weight \(int64\) no floating numbers",
        ),
        (
            lambda state: state.update({"output.weight": torch.zeros(VOCAB, DIM)}),
            r"head\.weight \(0\) the same number everywhere as torch\.float32",
        ),
        (
            lambda state: state.update({"tok_embeddings.weight": torch.full((VOCAB, DIM), 0.5)}),
            r"codes\.weight \(0\.5\) the same number everywhere",
        ),
        (lambda state: state.update({"norm.weight": torch.zeros(DIM)}), r"norm\.weight \(0\) the same number"),
        (
            lambda state: state.update({"tok_embeddings.weight": torch.zeros(0, DIM)}),
            r"expected numbers in every parameter, tok_embeddings\.weight has none",
        ),
        (
            lambda state: state.update({"cls_embedding.embedding_table.weight": torch.zeros(0, DIM)}),
            r"embedding_table\.weight has none",
        ),
        (lambda state: state.update({"layers.0.feed_forward.w1.weight": torch.zeros(0, DIM)}), "w1.weight has none"),
    ],
)
def test_parameters_that_do_not_fit_are_named(tmp_path: Path, change: object, message: str) -> None:
    state = dict(save_llamagen(tmp_path / "c2i.pt", captions=False).state_dict())
    change(state)  # type: ignore[operator]
    save_file(state, tmp_path / "changed.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load("llamagen-c2i", tmp_path / "changed.safetensors", options=TINY)


def test_numbers_that_a_precision_rounds_to_nothing_are_named(tmp_path: Path) -> None:
    state = dict(save_llamagen(tmp_path / "c2i.pt", captions=False).state_dict())
    state["output.weight"] = 1e-12 * state["output.weight"]
    state["layers.0.attention.wo.weight"] = torch.zeros(DIM, DIM)  # a layer that passes on what it got may be meant
    state["norm.weight"] = torch.ones(DIM)
    save_file(state, tmp_path / "small.safetensors")
    assert load("llamagen-c2i", tmp_path / "small.safetensors", options=TINY).decoder is not None
    with pytest.raises(CheckpointError, match=r"head\.weight \(-?0\) the same number everywhere as torch\.float16"):
        load("llamagen-c2i", tmp_path / "small.safetensors", "fp16", TINY)


def test_a_tokenizer_of_no_codes_or_of_equal_ones_is_refused(tmp_path: Path) -> None:
    state = dict(save_vq(tmp_path / "vq.pt").state_dict())
    codes = state["quantize.embedding.weight"]
    for changed, message in (
        (codes[:0], r"quantize\.embedding\.weight has none"),
        (torch.zeros_like(codes), r"quantize\.embedding\.weight \(0\) the same number everywhere"),
    ):
        torch.save({"model": {**state, "quantize.embedding.weight": changed}}, tmp_path / "changed.pt")
        with pytest.raises(CheckpointError, match=message):
            load("vq", tmp_path / "changed.pt")


def test_a_pipe_is_no_checkpoint(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(OSError, match="expected a regular file, got a named pipe"):
        read_checkpoint(tmp_path / "pipe.pt")
    with pytest.raises(CheckpointError, match="expected one checkpoint file or an index, got 0"):
        read_checkpoint(tmp_path)


def test_layers_missing_at_the_end_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A published width tells how many there are; --heads says that it is another model."""
    save_llamagen(tmp_path / "c2i.pt", captions=False)
    monkeypatch.setitem(llamagen.HEADS, DIM, HEADS)
    monkeypatch.setitem(llamagen.LAYERS, DIM, LAYERS + 1)
    with pytest.raises(CheckpointError, match=f"published with {LAYERS + 1} layers, got {LAYERS}"):
        load("llamagen-c2i", tmp_path / "c2i.pt", options=LoadOptions(grid_side=SIDE))
    assert load("llamagen-c2i", tmp_path / "c2i.pt", options=TINY).decoder is not None


def test_a_drafter_reads_its_own_embeddings_and_nothing_goes_unread(tmp_path: Path) -> None:
    model = save_llamagen(tmp_path / "c2i.pt", captions=False)
    target = ("llamagen-c2i", tmp_path / "c2i.pt")

    def loaded(state: dict[str, Tensor]) -> Decoder:
        save_file(state, tmp_path / "drafter.safetensors")
        decoder = load("eagle-drafter", tmp_path / "drafter.safetensors", target=target, target_options=TINY).decoder
        assert decoder is not None
        return decoder

    state = eagle_weights()
    embeddings = state["embed_tokens.weight"]
    assert not torch.equal(embeddings, model.tok_embeddings.weight)
    assert torch.equal(loaded(state).codes.weight, embeddings)
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight of 32 codes, got 7 rows"):
        loaded(state | {"embed_tokens.weight": noise(7, DIM)})
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.q_proj\.bias not known"):
        loaded(state | {"layers.0.self_attn.q_proj.bias": noise(DIM)})
    del state["embed_tokens.weight"]
    assert torch.equal(loaded(state).codes.weight, model.tok_embeddings.weight)


def test_training_files_are_read_as_their_authors_read_them(tmp_path: Path) -> None:
    """LlamaGen's sampling reads "model", whatever stands beside it: averages, optimisers, a discriminator."""
    model = save_vq(tmp_path / "vq.pt")
    state = model.state_dict()
    beside = {"exp_avg": torch.zeros(3), "step": torch.tensor(4.0)}
    training = {
        "ema": {name: value + 1 for name, value in state.items()},
        "model": state,
        "optimizer": {"state": {0: beside}, "param_groups": [{"lr": 1e-4, "params": [0]}]},
        "discriminator": {"main.0.weight": torch.zeros(2)},
        "optimizer_disc": {"state": {}, "param_groups": []},
        "steps": 7,
        "args": argparse.Namespace(vq_model="VQ-16", ema=True),
    }
    torch.save(training, tmp_path / "training.pt")
    tokenizer = load("vq", tmp_path / "training.pt").vq
    assert tokenizer is not None
    for name, value in tokenizer.state_dict().items():
        assert torch.equal(value, state[name])


def test_a_wrong_kind_is_told_the_right_one(tmp_path: Path) -> None:
    save_llamagen(tmp_path / "t2i.pt", captions=True)
    with pytest.raises(CheckpointError, match="use --kind llamagen-t2i"):
        load("llamagen-c2i", tmp_path / "t2i.pt", options=TINY)
    with pytest.raises(CheckpointError, match="use --kind llamagen-t2i"):
        load("vq", tmp_path / "t2i.pt")
    with pytest.raises(ValueError, match="--kind: expected one of"):
        load("llamagen", tmp_path / "t2i.pt")
    with pytest.raises(ValueError, match="needs its target"):
        load("eagle-drafter", tmp_path / "t2i.pt")
    with pytest.raises(CheckpointError, match="give --heads"):
        load("llamagen-t2i", tmp_path / "t2i.pt")
    assert likely_kind(["abs_pe"]) == "tar-dtok"
    assert likely_kind(["x"]) is None


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("ran",))


def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": {"norm.weight": torch.zeros(1)}, "hook": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "old.bin").write_bytes(pickle.dumps({"a": Evil()}))
    for name in ("evil.pt", "old.bin"):
        with pytest.raises(CheckpointError, match="refused"):
            load("llamagen-c2i", tmp_path / name)
    assert "ran" not in capsys.readouterr().out


def test_damaged_files_are_named(tmp_path: Path) -> None:
    model = save_llamagen(tmp_path / "c2i.pt", captions=False)
    save_file(dict(model.state_dict()), tmp_path / "c2i.safetensors")
    for name in ("c2i.pt", "c2i.safetensors"):
        content = (tmp_path / name).read_bytes()
        for keep in (0, 100, len(content) // 2):
            (tmp_path / f"cut_{name}").write_bytes(content[:keep])
            with pytest.raises(CheckpointError, match="cut short"):
                read_checkpoint(tmp_path / f"cut_{name}")
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        read_checkpoint(tmp_path / "nothing.pt")
    with pytest.raises(CheckpointError, match="expected one checkpoint file or an index"):
        read_checkpoint(tmp_path)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="expected parameters by name"):
        read_checkpoint(tmp_path / "list.pt")
    shutil.copy(tmp_path / "c2i.safetensors", tmp_path / "fine.safetensors")
    randomise(model)
    assert (
        read_checkpoint(tmp_path / "fine.safetensors").digest()
        == read_checkpoint(tmp_path / "c2i.safetensors").digest()
    )


def hub(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[tuple[str, object]]:
    """A hub whose every repository is `folder`; what was asked of it."""
    requests: list[tuple[str, object]] = []

    def snapshot_download(repository: str, allow_patterns: object = None) -> str:
        requests.append((repository, allow_patterns))
        if repository == "nobody/nothing":
            raise RuntimeError("404 Client Error\nRequest ID: 1")
        return str(folder)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    return requests


def test_a_hub_name_is_fetched_whole_or_one_file_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = hub(monkeypatch, tmp_path)
    (tmp_path / "c2i_B_256.pt").touch()
    assert find("owner/model") == tmp_path
    assert find("owner/model/c2i_B_256.pt") == tmp_path / "c2i_B_256.pt"
    assert requests == [("owner/model", None), ("owner/model", ["c2i_B_256.pt", "c2i_B_256.pt/*"])]
    for name, message in (
        ("owner/model/c2i_L_256.pt", "no c2i_L_256.pt in the hub's 'owner/model'"),
        ("nobody/nothing", r"the hub did not give it \(404 Client Error\)$"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            find(name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError, match="pip install huggingface_hub"):
        find("owner/model")


@pytest.mark.parametrize("name", ["c2i.pt", "/c2i.pt", "./c2i.pt", "../c2i.pt", "drafter/", "~/c2i.pt"])
def test_a_path_is_no_hub_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = hub(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert find(name) == Path(name)
    assert not requests
