"""Every setting of every rule, policy and method declares its bounds; a value beyond them is refused by name."""

import dataclasses
from collections.abc import Iterator, Mapping
from math import inf, nan, nextafter
from pathlib import Path
from typing import Any, NamedTuple, get_origin, get_type_hints

import pytest

from tests.cli.program import run_program
from underpaint.algos.accept import RULES
from underpaint.algos.draft import POLICIES
from underpaint.algos.registry import Bounds, check_bounds, declared, settings_fields
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.runtime.methods.method import GIVEN_BY_ENGINE
from underpaint.runtime.methods.registry import METHODS


class Setting(NamedTuple):
    """A setting of a dataclass, and a command line that sets it, with {} for its value."""

    made: type[Any]
    name: str
    command: str


def _settings() -> Iterator[Setting]:
    """Each setting once: of a dataclass that several methods share, in the first of them."""
    kinds: dict[type[Any], str] = {}
    for rule in RULES:
        if isinstance(rule.make, type):
            kinds[rule.make] = f"exact {rule.name} --set {{name}}={{{{}}}}"
    for policy in POLICIES:
        judge = next(
            rule.name for rule in RULES if policy.drawn in rule.drawn and not rule.greedy and not rule.needs_chain
        )
        if isinstance(policy.make, type):
            kinds[policy.make] = f"exact {judge} --policy {policy.name} --set-policy {{name}}={{{{}}}}"
    for method in METHODS:
        config = method.tuned.sampled
        generate_command = f"generate 'a panda left of a fox' --method {method.name} --set "
        kinds.setdefault(type(config), generate_command + "{name}={{}}")
        for part in ("skipping", "window", "drawn"):
            kind = type(getattr(config, part, None))
            if dataclasses.is_dataclass(kind):
                prefix = "" if kind is JacobiWindow and not hasattr(config, "policy") else f"{part}."
                kinds.setdefault(kind, generate_command + prefix + "{name}={{}}")
    for kind, command in kinds.items():
        hints = get_type_hints(kind)
        for name in settings_fields(kind):
            if name not in GIVEN_BY_ENGINE and _is_number(hints[name]) and name not in _OF_THE_PROGRAM:
                option = "window" if (kind, name) == (JacobiWindow, "length") and " window." not in command else name
                yield Setting(kind, name, command.format(name=option))


_OF_THE_PROGRAM = ("published_k",)
"""Fields of configurations that no user sets."""


def _is_number(kind: Any) -> bool:
    if get_origin(kind) is Mapping:
        return False
    return kind in (int, float) or any(map(_is_number, getattr(kind, "__args__", ())))


SETTINGS = list(_settings())


def _within(setting: Setting) -> Bounds:
    within, _ = declared(setting.made)[setting.name]
    assert within is not None, f"{setting.made.__name__}.{setting.name} declares no bounds: annotate it"
    return within


def _beyond(within: Bounds, kind: Any) -> list[float]:
    is_whole = isinstance(within.least, int)
    low = within.least if within.above else within.least - 1 if is_whole else nextafter(within.least, -inf)
    high = [] if within.most == inf else [within.most + 1 if is_whole else nextafter(within.most, inf)]
    return [low, *high, *([] if is_whole else [nan])]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: f"{one.made.__name__}.{one.name}")
def test_a_setting_beyond_its_bounds_is_refused_by_its_name(setting: Setting) -> None:
    within, kind = _within(setting), get_type_hints(setting.made)[setting.name]
    default = next(field.default for field in dataclasses.fields(setting.made) if field.name == setting.name)
    assert default is dataclasses.MISSING or default is None or _accepts(within, default)
    assert within.least <= within.most
    for value in _beyond(within, kind):
        holder = object.__new__(setting.made)
        object.__setattr__(holder, setting.name, value)
        with pytest.raises(ValueError, match=rf"it: {setting.name} must be (at least|at most|above) .*, got "):
            check_bounds("it", holder)


def _accepts(within: Bounds, value: Any) -> bool:
    within.check("default", value)
    return True


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: f"{one.made.__name__}.{one.name}")
def test_the_command_line_refuses_it_too(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    within = _within(setting)
    kind = str(get_type_hints(setting.made)[setting.name])
    whole = isinstance(within.least, int)
    beyond: list[str] = [str(within.least - 1)] if whole else [f"{within.least - 1:g}"]
    if within.most < 1e9:
        beyond.append(str(within.most + 1) if whole else f"{within.most * 2:.0f}")
    for value in beyond:
        text = f"1:{value}" if "tuple[tuple[int" in kind and "float |" not in kind else value
        text = f"{value},{value}" if "tuple[float, float]" in kind else text
        done = run_program(setting.command.format(text), tmp_path, monkeypatch)
        message = " ".join(done.err.replace("\u2502", " ").split())
        assert (done.code, done.crash) == (2, ""), (setting.command, value, done)
        assert setting.name in message, message
        assert value in message or value.replace("-", "") in message, message
        assert list(tmp_path.iterdir()) == []
