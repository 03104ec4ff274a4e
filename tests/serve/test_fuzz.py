"""Malformed requests, fuzzed from the OpenAPI document and byte by byte: answers of 4xx, and never a traceback."""

import json
import os
from collections import Counter
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.serve.served import PATH, PROMPT, Address, server
from underpaint.serve.requests import Limits

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
LOOK = settings(
    max_examples=5_000 if NIGHTLY else 100,
    phases=[Phase.generate],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
FIELDS = (
    *("prompt", "model", "n", "size", "response_format", "output_format", "stream", "partial_images", "seed", "method"),
    *("temperature", "top_k", "top_p", "guidance", "events", "picture_every", "deadline", "user", "nonsense"),
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SENSIBLE = {"prompt": PROMPT, "method": "ar", "deadline": 5.0}


@pytest.fixture(scope="module")
def address() -> Any:
    with server(limits=Limits(body_bytes=20_000, images=2, stalled_seconds=2.0)) as address:
        yield address


def check(response: httpx2.Response) -> int:
    """The status of an answer that is a picture, or an error object of 4xx."""
    text = response.text
    assert "Traceback" not in text
    assert response.status_code in (200, *range(400, 500)), text
    if response.status_code >= 400:
        assert {"message", "type", "param", "code"} == response.json()["error"].keys()
    return response.status_code


def test_requests_that_break_the_openapi_document(address: Address, caplog: pytest.LogCaptureFixture) -> None:
    import schemathesis  # slow, and needed here only

    document = address.client.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    statuses: Counter[int] = Counter()

    @LOOK
    @given(schema[PATH]["POST"].as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    def fuzz(case: Any) -> None:
        arguments = case.as_transport_kwargs(base_url=str(address.client.base_url))
        body = {"json": arguments["json"]} if "json" in arguments else {"content": arguments.get("data") or b""}
        headers = {"content-type": "application/json"}
        try:
            response = address.client.request(arguments["method"], arguments["url"], headers=headers, **body)
        except ValueError:
            return  # the client itself sends no NaN
        statuses[check(response)] += 1

    fuzz()
    assert statuses[400] > 0.8 * statuses.total()
    assert address.engine.alive
    assert "Traceback" not in caplog.text


@LOOK
@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, min_size=1, max_size=4))
def test_fields_of_any_type(address: Address, fields: dict[str, Any]) -> None:
    content = json.dumps({**SENSIBLE, **fields}).encode("utf-8", "surrogatepass")
    headers = {"content-type": "application/json"}
    check(address.client.post(PATH, content=content, headers=headers))


@LOOK
@given(st.binary(max_size=200), st.sampled_from(("application/json", "text/plain", "multipart/form-data", "")))
def test_bodies_of_any_bytes(address: Address, content: bytes, kind: str) -> None:
    assert check(address.client.post(PATH, content=content, headers={"content-type": kind})) == 400


@LOOK
@given(st.sampled_from(("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")), st.text(max_size=30))
def test_paths_of_any_text(address: Address, method: str, path: str) -> None:
    for whole in (f"/{quote(path)}", f"/v1/models/{quote(path, safe='')}"):
        status = check(address.client.request(method, whole))
        assert status in (404, 405) or path in ("", "synthetic", "health", "ready", "metrics", "openapi.json")
