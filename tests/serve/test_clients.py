"""Clients as they are on the registry, and the ComfyUI node of the documents, against a server that listens."""

import base64
import importlib.util
import re
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve.served import OTHER, PROMPT, SECONDS, Address, expected_pictures, pixels, request, server
from underpaint.serve.guard import Keys

openai = pytest.importorskip("openai", reason="the package openai (extra 'dev') is absent")

KEY = "a-key-of-sixteen-letters"
ROOT = Path(__file__).parents[2]
NODE = ROOT / "docs" / "examples" / "comfyui_underpaint.py"


def client(address: Address, key: str = KEY) -> Any:
    url = f"http://{address.host}:{address.port}/v1"
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0)


def test_openai_draws() -> None:
    draw_request = request(PROMPT, (3, 4), "eagle2", temperature=1.0)
    extra = {"seed": 3, "method": "eagle2", "temperature": 1.0}
    with server(keys=Keys([KEY])) as address, client(address) as openai_client:
        (model,) = openai_client.models.list().data
        answer = openai_client.images.generate(
            model=model.id, prompt=PROMPT, n=2, size="64x64", extra_body=extra, timeout=SECONDS
        )
    assert answer.output_format == "png"
    assert answer.usage.total_tokens == 2 * 16
    pictures = [pixels(base64.b64decode(one.b64_json)) for one in answer.data]
    for picture, expected in zip(pictures, expected_pictures(draw_request), strict=True):
        np.testing.assert_array_equal(picture, expected)


def test_openai_streams() -> None:
    extra = {"seed": 5, "method": "eagle2", "temperature": 1.0}
    with server(keys=Keys([KEY])) as address, client(address) as openai_client:
        stream = openai_client.images.generate(
            model="synthetic", prompt=OTHER, stream=True, partial_images=2, extra_body=extra, timeout=SECONDS
        )
        events = list(stream)
    assert [event.type for event in events] == ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
    assert [event.partial_image_index for event in events[:-1]] == [0, 1]
    (expected,) = expected_pictures(request(OTHER, (5,), "eagle2", temperature=1.0))
    np.testing.assert_array_equal(pixels(base64.b64decode(events[-1].b64_json)), expected)
    assert events[-1].usage.output_tokens == 16


def test_openai_raises_its_own_errors() -> None:
    with server(keys=Keys([KEY])) as address:
        with client(address, "another-key-of-this-length") as stranger, pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        with client(address) as openai_client:
            with pytest.raises(openai.BadRequestError, match="unknown word 'zebra'") as refused:
                openai_client.images.generate(model="synthetic", prompt="a zebra")
            assert refused.value.param == "prompt"
            with pytest.raises(openai.NotFoundError, match="expected synthetic"):
                openai_client.images.generate(model="gpt-image-1", prompt=PROMPT)


def test_the_comfyui_node_draws_without_comfyui() -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    (node,) = runpy.run_path(str(NODE))["NODE_CLASS_MAPPINGS"].values()
    inputs = node.INPUT_TYPES()
    arguments = {name: more["default"] for kind in inputs.values() for name, (_, more) in kind.items()}
    assert node.RETURN_TYPES == ("IMAGE",)
    with server(keys=Keys([KEY])) as address:
        arguments |= {"server": f"http://{address.host}:{address.port}", "api_key": KEY}
        arguments |= {"prompt": PROMPT, "seed": 3, "method": "eagle2", "temperature": 1.0, "images": 2}
        draw = getattr(node(), node.FUNCTION)
        (images,) = draw(**arguments)
        with pytest.raises(RuntimeError, match="Underpaint: unknown word 'zebra'"):
            draw(**{**arguments, "prompt": "a zebra"})
    expected = expected_pictures(request(PROMPT, (3, 4), "eagle2", temperature=1.0))
    assert images.dtype.is_floating_point
    np.testing.assert_array_equal((images.numpy() * 255).round().astype(np.uint8), np.stack(expected))
    with pytest.raises(RuntimeError, match=r"Underpaint: no server at http://127\.0\.0\.1:9"):
        draw(**{**arguments, "server": "http://127.0.0.1:9"})


def documented_calls() -> list[str]:
    page = (ROOT / "docs/how-to/serve-a-model.md").read_text(encoding="utf-8")
    return re.findall(r"^    (curl .*)", re.sub(r" *\\\n\s+", " ", page), re.MULTILINE)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
@pytest.mark.parametrize(
    ("place", "expected"), list(enumerate(['"b64_json"', "event: underpaint.cells", "underpaint_queue", "true"]))
)
def test_curl_of_the_how_to_draws(place: int, expected: str) -> None:
    assert len(documented_calls()) == 4
    with server() as address:
        call = documented_calls()[place].replace("127.0.0.1:8000", f"{address.host}:{address.port}")
        output = subprocess.run(shlex.split(call), capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    assert expected in output


def test_the_node_needs_nothing_of_this_project() -> None:
    assert "underpaint." not in NODE.read_text(encoding="utf-8").replace("underpaint serve", "")
    assert importlib.util.spec_from_file_location("node", NODE) is not None
