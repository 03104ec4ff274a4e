"""What a server refuses: each with OpenAI's error object, its status and the field that is at fault."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.serve.served import (
    OTHER,
    PATH,
    PROMPT,
    SECONDS,
    ServedPipeline,
    engine_loop,
    events_of,
    gate_of,
    request,
    server,
)
from underpaint.serve.guard import Keys
from underpaint.serve.models import ServedModels
from underpaint.serve.requests import Limits

KEY = "a-key-of-some-length"
LIMITS = Limits(body_bytes=2_000, prompt_characters=100, images=4)


@pytest.fixture(scope="module")
def address():
    with server(limits=LIMITS) as address:
        yield address


def refused(response, status, parameter=None, said=""):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == parameter
    assert said in error["message"]
    assert "Traceback" not in response.text
    return error


@pytest.mark.parametrize(
    ("body", "parameter", "said"),
    [
        ({"prompt": ""}, "prompt", ""),
        ({"prompt": None}, "prompt", ""),
        ({"prompt": "a woolly fux left of an owl"}, "prompt", "did you mean 'fox'"),
        ({"prompt": "x" * 101}, "prompt", "at most 100 characters"),
        ({"prompt": "/etc/passwd.npy"}, "prompt", "a server reads no files"),
        ({"prompt": "features.npy "}, "prompt", "a server reads no files"),
        ({"n": 0}, "n", ""),
        ({"n": 5}, "n", "1 to 4"),
        ({"n": "2"}, "n", ""),
        ({"n": True}, "n", ""),
        ({"size": "512x512"}, "size", "expected one of 64x64, auto"),
        ({"seed": -1}, "seed", ""),
        ({"seed": 2**64 - 1, "n": 2}, "seed", ""),
        ({"method": "fastest"}, "method", ""),
        ({"method": "eagle2:nothing"}, "method", ""),
        ({"temperature": -1}, "temperature", ""),
        ({"top_k": 41}, "top_k", "at most the 40 codes"),
        ({"top_p": 0}, "top_p", ""),
        ({"partial_images": 4, "stream": True}, "partial_images", ""),
        ({"events": True}, "stream", "set stream to true"),
        ({"response_format": "url"}, "response_format", "expected b64_json"),
        ({"output_format": "tiff"}, "output_format", ""),
        ({"temprature": 1}, "temprature", ""),
        ({"setting": ["costs=/etc/passwd"]}, "setting", ""),
        ({"deadline": 0}, "deadline", ""),
    ],
)
def test_a_field_out_of_range_is_named(address, body, parameter, said):
    refused(address.client.post(PATH, json={"prompt": PROMPT, **body}), 400, parameter, said)


def test_another_model_is_not_found(address):
    assert refused(address.post(model="dall-e-3"), 404, "model", "expected synthetic")["code"] == "model_not_found"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"a"',
        b"\xff\xfe",
        b"[" * 1900,
        b'{"prompt": 1e999}',
        b'{"seed": NaN, "prompt": "a"}',
    ],
)
def test_a_body_that_is_no_request(address, content):
    response = address.client.post(PATH, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_half_a_surrogate_pair(address):
    body = json.dumps({"prompt": "an owl \ud800"}).encode()
    refused(address.client.post(PATH, content=body, headers={"content-type": "application/json"}), 400, "prompt")


def test_bodies_that_are_too_large(address):
    refused(address.post(user="x" * 2_000), 413, said="at most 2,000 bytes")
    chunks = (b"x" * 500 for _ in range(100))
    refused(address.client.post(PATH, content=chunks), 413)


def test_a_body_that_does_not_come():
    with (
        server(limits=Limits(stalled_seconds=0.1)) as address,
        socket.create_connection((address.host, address.port), SECONDS) as sent,
    ):
        sent.sendall(f"POST {PATH} HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{{".encode())
        assert sent.recv(100).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v2", 404), ("GET", PATH, 405), ("PUT", "/health", 405)]
)
def test_paths_and_methods_that_are_not_there(address, method, path, status):
    refused(address.client.request(method, path), status)


def test_messages_name_no_path_of_the_server():
    pipeline = ServedPipeline()
    pipeline.drafter = lambda sampling: (_ for _ in ()).throw(ValueError(f"{pipeline.folder} holds no drafter"))
    served = ServedModels("synthetic", {"64x64": pipeline})
    from tests.serve.served import request
    from underpaint.serve.requests import RequestError

    with pytest.raises(RequestError, match=r"^this model holds no drafter$") as error:
        served.prepare(request(method="eagle2"))
    assert (error.value.status, error.value.parameter) == (400, "method")


def test_only_who_shows_a_key_draws(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# ours\nanother-key-of-some-length\n{KEY}\n")
    with server(keys=Keys.read(path)) as address:
        error = refused(address.post(), 401, said="Authorization: Bearer KEY, got none")
        assert error["code"] == "invalid_api_key"
        for header in ("Bearer nothing", f"Basic {KEY}", "Bearer", KEY, "Bearer \xff"):
            response = address.client.post(
                PATH, json={"prompt": PROMPT}, headers={"authorization": header.encode("latin-1")}
            )
            refused(response, 401)
        assert address.client.get("/metrics").status_code == 401
        assert address.client.get("/v1/models").status_code == 401
        assert address.client.get("/health").status_code == 200
        assert address.client.get("/ready").status_code == 200
        headers = {"authorization": f"Bearer {KEY}"}
        assert address.client.post(PATH, json={"prompt": PROMPT}, headers=headers).status_code == 200
        assert address.client.get("/metrics", headers=headers).status_code == 200


@pytest.mark.parametrize("content", [b"", b"# nothing\n\n", b"short\n", b"\xff" * 20, b"a" * (2 << 20)])
def test_a_file_without_keys_is_refused(tmp_path, content):
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="--api-key-file"):
        Keys.read(path)


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"guidance": 1e9}, "guidance", "guidance must be >= 0 and at most 10000, got 1000000000.0"),
        ({"temperature": -1}, "temperature", "temperature: expected greater than or equal to 0, got -1"),
        ({"output_format": "gif"}, "output_format", "output_format: expected 'png', 'webp' or 'jpeg', got 'gif'"),
        ({"steps": 4}, "steps", "steps: there is no such field; leave it out, known are prompt, model, n, "),
        ({"prompt": ""}, "prompt", "prompt: expected a text of at least 1 character, got ''"),
        ({"deadline": 0.001}, None, "the request was not finished within its 0.001 seconds; allow more"),
    ],
)
def test_a_refusal_says_what_was_expected_and_what_came(body: Any, field: str | None, message: str) -> None:
    with server() as address:
        gate_of(address.engine).shut()
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(address.post, **body)
            time.sleep(0.05)
            gate_of(address.engine).let()
            error = waits.result().json()["error"]
    assert error["param"] == field
    assert message in error["message"]


def test_a_prompt_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    condition = ServedPipeline.condition
    monkeypatch.setattr(ServedPipeline, "condition", lambda self, text: read.append(text) or condition(self, text))
    with engine_loop() as engine:
        engine.prepare(request())
        events_of(engine.submit(request(seeds=(0, 1))), engine.submit(request(OTHER)))
    assert read == [PROMPT, OTHER]
