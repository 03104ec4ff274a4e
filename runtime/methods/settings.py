"""Parsing of user settings: `name=value` is converted to the type that a rule or a policy declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from underpaint.algos.numbers import LEAST_REAL, MOST_REAL, real_number, whole_number
from underpaint.algos.registry import suggest, values_to_tune

Curve: TypeAlias = tuple[tuple[int, float], ...]
SettingValue: TypeAlias = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | Curve | None
"""The types of settings: values that JSON can hold."""
MOST_WHOLE_SETTING = 2**31 - 1
"""The largest magnitude of an integer setting; most settings have tighter bounds."""


def settings_of(make: Callable[..., Any], given_by_engine: Iterable[str] = ()) -> dict[str, Any]:
    """Return the declared types of a dataclass's settings, without those that an engine supplies."""
    hints = get_type_hints(make)
    supplied = set(given_by_engine)
    return {field.name: hints[field.name] for field in _fields(make) if field.init and field.name not in supplied}


def _fields(make: Callable[..., Any]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a registered part; raise TypeError if it is no dataclass, a mistake in its registration."""
    if not dataclasses.is_dataclass(make):
        raise TypeError(f"{make!r}: expected a dataclass, whose fields are settings")
    return dataclasses.fields(make)


def split_setting(text: str) -> tuple[str, str]:
    """Split `name=value` into (name, value); raise ValueError for any other text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"setting {text!r}: expected name=value, such as depth=3")
    return name.strip(), value.strip()


def split_settings(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Split `name=value` settings into pairs; raise ValueError if a name is given twice."""
    pairs = [split_setting(text) for text in texts]
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            values = " and ".join(value for one, value in pairs if one == name)
            raise ValueError(f"setting '{name}' is given {names.count(name)} times, {values}; give it once")
    return pairs


def overridden(*groups: Iterable[str]) -> list[str]:
    """Merge `name=value` settings; for a repeated name the last value wins."""
    last = dict(split_setting(text) for group in groups for text in group)
    return [f"{name}={value}" for name, value in last.items()]


def read_settings(
    what: str, make: Callable[..., Any], texts: Iterable[str], given_by_engine: Iterable[str] = ()
) -> dict[str, SettingValue]:
    """Parse `name=value` settings of a dataclass; see `read_setting`."""
    types = settings_of(make, given_by_engine)
    return {name: read_setting(what, name, value, types) for name, value in split_settings(texts)}


def read_setting(what: str, name: str, text: str, types: Mapping[str, Any]) -> SettingValue:
    """Parse `text` as the declared type of setting `name`; raise ValueError on an unknown name or invalid value."""
    if name not in types:
        raise ValueError(f"{what}: unknown setting '{name}'; {suggest(name, types) if types else 'it takes none'}")
    try:
        return _read(text, types[name])
    except ValueError as error:
        raise ValueError(
            f"{what}: setting '{name}' is {_described(types[name])}, got {text[:80]!r}{_bounds(text, types[name])}"
        ) from error


def owner_of(method: str, key: str, settings_by_part: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Return the part of a method that a setting belongs to, and the setting's name in that part.

    Args:
        method: The method's name, for error messages.
        key: `name` or `part.name`.
        settings_by_part: The settings of each part, by the part's name.

    Raises:
        ValueError: No part has the setting, or more than one.
    """
    part, dot, bare = key.partition(".")
    qualified = bool(dot) and part in settings_by_part
    owners = [part] if qualified else [owner for owner in settings_by_part if key in settings_by_part[owner]]
    if len(owners) > 1:
        both = " and ".join(f"the {owner}'s" for owner in owners)
        spelled = " or ".join(f"{owner}.{key}" for owner in owners)
        raise ValueError(f"setting '{key}' is both {both}; write {spelled}")
    if not owners:
        every = [name for settings in settings_by_part.values() for name in settings]
        hint = suggest(key, every) if every else "it takes none"
        raise ValueError(f"method '{method}': unknown setting '{key}'; {hint}")
    return owners[0], bare if qualified else key


def read_parts(
    method: str,
    pairs: Iterable[tuple[str, str]],
    settings_by_part: Mapping[str, Mapping[str, Any]],
    what: str | None = None,
) -> dict[str, dict[str, SettingValue]]:
    """Parse a user's settings for the parts of a method.

    Args:
        method: The method's name.
        pairs: Names, as `name` or `part.name`, and the text of each value.
        settings_by_part: The settings of each part with their types, by the part's name.
        what: The start of error messages about a value; None names the part and the method.

    Returns:
        The values by part and name.

    Raises:
        ValueError: A setting is unknown, ambiguous, given twice, or has an invalid value.
    """
    values: dict[str, dict[str, SettingValue]] = {part: {} for part in settings_by_part}
    for key, text in pairs:
        part, name = owner_of(method, key, settings_by_part)
        if name in values[part]:
            raise ValueError(f"setting '{name}' is given twice, as {name} and as {part}.{name}; give it once")
        values[part][name] = read_setting(what or f"{part} of '{method}'", name, text, settings_by_part[part])
    return values


def _read(text: str, kind: Any) -> SettingValue:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if kind is int:
        return _whole_setting(text)
    if kind is float:
        # The setting's own check rejects NaN and says what it expects; infinity, which JSON cannot hold, may pass it.
        return float(text) if text.lower().lstrip("+-") == "nan" else real_number(text)
    if kind == Curve:
        return tuple(
            (whole_number(at), real_number(value)) for at, value in (part.split(":") for part in text.split(","))
        )
    if kind in (tuple[int, ...], tuple[float, ...]):
        parts, whole = text.split(","), get_args(kind)[0] is int
        return tuple(map(_whole_setting, parts)) if whole else tuple(map(real_number, parts))
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError(text)
        return text
    if get_origin(kind) in (Union, UnionType):
        if NoneType in get_args(kind) and text.lower() == "none":
            return None
        for part in get_args(kind):
            try:
                return _read(text, part)
            except ValueError:
                continue
    if kind in (str, Path):
        return text
    raise ValueError(text)


def _bounds(text: str, kind: Any) -> str:
    """Return the bounds of a numeric setting for an error message, or "" if Python cannot read `text` as a number."""
    try:
        float(text)
    except ValueError:
        return ""
    kinds = get_args(kind) or (kind,)
    if float in kinds:
        return f"; expected 0 or of size {LEAST_REAL:g} to {MOST_REAL:g}, in digits 0 to 9"
    if int in kinds:
        return f"; expected -{MOST_WHOLE_SETTING:,} to {MOST_WHOLE_SETTING:,}, in digits 0 to 9"
    return ""


def _whole_setting(text: str) -> int:
    return whole_number(text, -MOST_WHOLE_SETTING, MOST_WHOLE_SETTING)


def _described(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(str(option) for option in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_described(part) for part in get_args(kind))
    if kind in (tuple[int, ...], tuple[float, ...]):
        return "numbers with commas between"
    if kind == Curve:
        return "number:value pairs with commas between"
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a word",
        NoneType: "none",
    }
    return words.get(kind, f"no plain value ({kind}); it cannot be set here")


def setting_text(value: object) -> str:
    """Format a setting's value as a user types it."""
    if isinstance(value, tuple | list):
        return ",".join(map(setting_text, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def settings_to_tune(make: Callable[..., Any], values: Mapping[str, object], part: str = "") -> dict[str, list[str]]:
    """Return the values of a part's settings that tuning should try; see `algos.registry.Tune`.

    Args:
        make: The part, a dataclass.
        values: The current settings.
        part: A prefix for the settings' names, as in `part.name`; empty if there is only one part.

    Returns:
        For each setting, the other values as text. A setting whose value is a word or None, and not one of the declared
        values, is left out: it defines the method.
    """
    grid = {}
    for name, tried in values_to_tune(make).items():
        now = values.get(name)
        others = [setting_text(value) for value in tried if value != now]
        if others and (now in tried or isinstance(now, int | float | tuple)):
            grid[f"{part}.{name}" if part else name] = others
    return grid


def settings_line(config: Mapping[str, Any]) -> str:
    """Format the settings of a configuration in JSON form on one line.

    A `k` that is scaled to the codebook is shown with the paper's value. Costs of passes are too long and left out.
    """
    parts = {**config.get("policy_settings", {}), **config.get("rule_settings", {}), **config.get("settings", {})}
    for part in ("window", "skipping", "drawn"):
        parts |= {f"{part}.{name}": value for name, value in config.get(part, {}).items()}
    if "published_k" in config:
        parts["k"] = f"{config['published_k']} of 16384"
    short = {name: value for name, value in parts.items() if not name.endswith("_ms") and name != "greedy"}
    return ", ".join(f"{name}={value}" for name, value in short.items() if value is not None)


def settings_by_default(make: Callable[..., Any], given_by_engine: Iterable[str] = ()) -> dict[str, SettingValue]:
    """Return the defaults of a dataclass's settings; None for a setting without a default."""
    types = settings_of(make, given_by_engine)
    return {
        field.name: None if field.default is dataclasses.MISSING else field.default
        for field in _fields(make)
        if field.name in types
    }
