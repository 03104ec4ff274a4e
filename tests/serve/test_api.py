"""What clients of OpenAI's images API send and get."""

import numpy as np
import pytest

from tests.serve.served import PROMPT, ServedPipeline, drawn_alone, expected_pictures, picture_in, request, server
from underpaint.algos.tree import NO_TOKEN
from underpaint.runtime.methods.registry import METHODS
from underpaint.serve.models import AUTO

FAMILIES = ("ar", "speculative", "eagle2", "jacobi-lookup", "sjd", "zipar", "pjd", "mulo-raster")


@pytest.fixture(scope="module")
def address():
    with server() as address:
        yield address


def test_pictures_are_those_that_the_command_line_draws(address):
    answer = address.post(n=3, seed=5, size="64x64", user="somebody", quality="high").json()
    expected = expected_pictures(request(seeds=(5, 6, 7)))
    assert answer["size"] == "64x64"
    assert answer["usage"]["output_tokens"] == 3 * 16
    assert [one["underpaint"]["seed"] for one in answer["data"]] == [5, 6, 7]
    for one, picture in zip(answer["data"], expected, strict=True):
        np.testing.assert_array_equal(picture_in(one), picture)


def test_a_seed_that_was_drawn_can_be_asked_for_again(address):
    first = address.post().json()["data"][0]
    again = address.post(seed=first["underpaint"]["seed"]).json()["data"][0]
    assert again["b64_json"] == first["b64_json"]
    assert address.post(seed=first["underpaint"]["seed"] + 1).json()["data"][0]["b64_json"] != first["b64_json"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", [spec.name for spec in METHODS if spec.name != "mulo-islands"])
def test_every_method_draws_what_it_draws_alone(address, method, temperature):
    """`mulo-islands` has row fronts that are wider than the synthetic low grid."""
    answer = address.post(method=method, temperature=temperature, seed=2)
    if "zipar" in method and temperature == 0.0:  # its tuned window is wider than the synthetic grid
        assert answer.status_code == 400
        assert "window: expected 1..4 on a grid of 4 x 4, got 6" in answer.text
        return
    if "underpaint costs" in answer.text:
        assert answer.status_code == 400
        pytest.skip("synthetic models have no costs")
    (alone,) = drawn_alone(request(seeds=(2,), method=method, temperature=temperature))
    (one,) = answer.json()["data"]
    np.testing.assert_array_equal(picture_in(one), ServedPipeline().picture(alone.tokens_array()))
    details = one["underpaint"]
    assert (details["target_passes"], details["drafter_passes"]) == (alone.target_nfe, alone.drafter_nfe)


@pytest.mark.parametrize("method", FAMILIES)
def test_cycles_tell_every_token_of_the_picture(address, method):
    events = address.stream(method=method, seed=4, events=True, n=2)
    for image, seed in enumerate((4, 5)):
        (alone,) = drawn_alone(request(seeds=(seed,), method=method))
        tokens, decided = np.full(16, NO_TOKEN), 0
        cells = [data for name, data in events if name == "underpaint.cells" and data["image"] == image]
        for number, data in enumerate(cells, start=1):
            placed = [*data["accepted"], *data["redrawn"], *data["drawn"]]
            for cell, token in placed:
                tokens[cell] = token
            decided += len(placed)
            assert (data["pass"], data["decided"], data["cells"]) == (number, decided, 16)
            assert {cell for cell, _ in data["accepted"]}.isdisjoint(data["rejected"])
        assert tokens.tolist() == list(alone.tokens)
        if alone.accepted is not None:
            assert sum(len(data["accepted"]) for data in cells) == sum(alone.accepted)
    names = [name for name, _ in events]
    assert names.count("image_generation.completed") == 2
    assert {data["request"] for _, data in events} == {events[0][1]["request"]}


def test_a_stream_has_the_partial_pictures_that_were_asked_for(address):
    events = address.stream(seed=1, partial_images=3)
    names = [name for name, _ in events]
    assert names == [*["image_generation.partial_image"] * 3, "image_generation.completed"]
    assert [data["partial_image_index"] for _, data in events[:3]] == [0, 1, 2]
    assert [data["decided"] for _, data in events[:3]] == [4, 8, 12]
    whole = picture_in(events[3][1])
    np.testing.assert_array_equal(whole, expected_pictures(request(seeds=(1,)))[0])
    half = picture_in(events[1][1])
    np.testing.assert_array_equal(half[:32], whole[:32])
    assert (half[32:] == 128).all()


def test_a_picture_may_come_every_so_many_cycles(address):
    events = address.stream(seed=1, picture_every=5, events=True)
    assert [data["decided"] for name, data in events if name == "image_generation.partial_image"] == [5, 10, 15]
    assert sum(name == "underpaint.cells" for name, _ in events) == 16


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG"), ("webp", b"RIFF"), ("jpeg", b"\xff\xd8")])
def test_pictures_come_in_the_format_asked_for(address, form, begins):
    from base64 import b64decode

    answer = address.post(seed=1, output_format=form).json()
    assert answer["output_format"] == form
    assert b64decode(answer["data"][0]["b64_json"]).startswith(begins)


def test_models_health_and_readiness(address):
    (model,) = address.client.get("/v1/models").json()["data"]
    assert (model["id"], model["object"]) == ("synthetic", "model")
    assert model["underpaint"]["sizes"] == ["64x64"]
    assert "jacobi-lookup" in model["underpaint"]["methods"]
    assert address.client.get("/v1/models/synthetic").json() == model
    assert address.client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"
    assert address.client.get("/health").json() == {"status": "ok"}
    assert address.client.get("/ready").json() == {"ready": True}
    assert address.post(model="synthetic", size=AUTO).status_code == 200


def test_metrics_count_what_was_drawn():
    with server() as address:
        answer = address.post(method="speculative", seed=1, n=2).json()
        assert address.post(method="nothing").status_code == 400
        lines = address.client.get("/metrics").text.splitlines()
    metrics = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    passes = sum(one["underpaint"]["target_passes"] for one in answer["data"])
    accepted = sum(sum(one.accepted) for one in drawn_alone(request(seeds=(1, 2), method="speculative")))
    assert float(metrics['underpaint_tokens_total{method="speculative"}']) == 32
    assert float(metrics['underpaint_target_passes_total{method="speculative"}']) == passes
    assert float(metrics['underpaint_tokens_per_pass{method="speculative"}']) == pytest.approx(32 / passes)
    assert float(metrics['underpaint_accepted_tokens_total{method="speculative"}']) == accepted
    assert float(metrics['underpaint_requests_total{status="200"}']) == 1
    assert float(metrics['underpaint_requests_total{status="400"}']) == 1
    assert float(metrics["underpaint_tokens_per_second"]) == pytest.approx(32 / 60)
    assert float(metrics["underpaint_batch_slots"]) == 2
    for stage in ("encode", "queue", "draw", "decode"):
        assert f'underpaint_stage_seconds_count{{stage="{stage}"}}' in metrics


@pytest.mark.parametrize("log_prompts", [False, True])
def test_the_log_holds_prompts_only_where_that_is_asked_for(caplog, log_prompts):
    with caplog.at_level("INFO", "underpaint.serve"), server(log_prompts=log_prompts) as address:
        assert address.post().status_code == 200
    assert "POST /v1/images/generations 200" in caplog.text
    assert (PROMPT in caplog.text) == log_prompts
