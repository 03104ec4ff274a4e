"""How every benchmark has to end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def figures(
    main: Callable[[list[str]], Any], arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """What a benchmark found: strict JSON as its last line, the same in --out, with its machine and command."""
    out = folder / "deep" / "found.json"
    assert not main([*arguments, "--out", str(out)])

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1], parse_constant=refuse)
    assert json.loads(out.read_text()) == found
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert found["machine"]["cores"] >= 1
    assert {"python", "numpy"} <= set(found["machine"])
    assert isinstance(found["command"], str)
    return found
