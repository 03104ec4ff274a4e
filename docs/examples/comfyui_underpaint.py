"""A ComfyUI node that draws with `underpaint serve`: put this file into ComfyUI/custom_nodes and start ComfyUI again.

It needs nothing but what ComfyUI brings: the server may run on another machine, and does the drawing.
"""

import base64
import io
import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import torch
from PIL import Image


class UnderpaintImage:
    """Draws a prompt on a server of Underpaint; the output is ComfyUI's IMAGE, [images, height, width, 3] in 0 to 1."""

    CATEGORY = "image/underpaint"
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "draw"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """Return the inputs of the node, as ComfyUI shows them."""
        return {
            "required": {
                "prompt": ("STRING", {"multiline": True, "default": "a woolly fox left of an outlined pumpkin"}),
                "seed": ("INT", {"default": 7, "min": 0, "max": 2**53 - 1}),
                "server": ("STRING", {"default": "http://127.0.0.1:8000"}),
            },
            "optional": {
                "method": (
                    "STRING",
                    {"default": "", "tooltip": "Empty: the server's own."},
                ),
                "temperature": (
                    "FLOAT",
                    {"default": -1.0, "min": -1.0, "max": 10.0, "step": 0.01, "tooltip": "-1: the model's."},
                ),
                "images": ("INT", {"default": 1, "min": 1, "max": 8}),
                "api_key": ("STRING", {"default": ""}),
            },
        }

    def draw(
        self,
        prompt: str,
        seed: int,
        server: str,
        method: str = "",
        temperature: float = -1.0,
        images: int = 1,
        api_key: str = "",
    ) -> tuple[torch.Tensor]:
        """Ask the server and return the pictures.

        Raises:
            RuntimeError: The server refused; the message is its own, which ComfyUI shows at the node.
        """
        body: dict[str, Any] = {"prompt": prompt, "seed": seed, "n": images, "response_format": "b64_json"}
        if method:
            body["method"] = method
        if temperature >= 0:
            body["temperature"] = temperature
        url = f"{server.rstrip('/')}/v1/images/generations"
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                data = json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"Underpaint: {json.load(error)['error']['message']}") from error
        except urllib.error.URLError as error:
            raise RuntimeError(f"Underpaint: no server at {server}: {error.reason}") from error
        pixels = [np.asarray(Image.open(io.BytesIO(base64.b64decode(one["b64_json"]))).convert("RGB")) for one in data]
        return (torch.from_numpy(np.stack(pixels).astype(np.float32) / 255.0),)


NODE_CLASS_MAPPINGS = {"UnderpaintImage": UnderpaintImage}
NODE_DISPLAY_NAME_MAPPINGS = {"UnderpaintImage": "Underpaint: draw"}
