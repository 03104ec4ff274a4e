"""Preset files: settings of methods that `underpaint tune` chose for a folder of models on a machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from underpaint.algos.registry import suggest
from underpaint.artifacts.manifest import digest, write_beside
from underpaint.artifacts.strict_json import build_typed, is_version, read_object
from underpaint.runtime.methods.registry import PRESETS, MethodConfig, resolve

VERSION: Final = 1
VERSION_KEY: Final = "preset_version"
_TUNE_AGAIN: Final = "tune these models with `underpaint tune`"


@dataclass(frozen=True, slots=True)
class ChosenSettings:
    """The settings of one method at one temperature, and what was measured of them.

    Attributes:
        temperature: The one that they were tuned at.
        preset: The preset that they start from, "tuned" or "paper".
        settings: `name=value` texts on top of it.
        config: The method's whole configuration with them, as JSON holds it.
        lossless: Whether they keep the target's distribution.
        measured: Speedups and quality with their intervals, and the number of pictures.
    """

    temperature: float
    preset: str
    settings: tuple[str, ...]
    config: Mapping[str, Any]
    lossless: bool
    measured: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChosenMethod:
    """The settings of one method above temperature 0 and at 0; None where they were not tuned."""

    sampled: ChosenSettings | None = None
    greedy: ChosenSettings | None = None


@dataclass(frozen=True, slots=True)
class PresetFile:
    """What a preset file holds; it stands wherever the name of a preset does.

    Attributes:
        path: The file, as it was named.
        command: The command that wrote it.
        machine: The machine that it was measured on.
        model: The models; see `Pipeline.fingerprint`.
        tuning: How the settings were chosen: prompts, and the bound of quality.
        methods: The chosen settings by method.
    """

    path: str
    command: str
    machine: Mapping[str, Any]
    model: Mapping[str, Any]
    tuning: Mapping[str, Any]
    methods: Mapping[str, ChosenMethod]

    def __str__(self) -> str:
        """Return its name in titles and records."""
        return Path(self.path).name

    def config(self, name: str, temperature: float) -> MethodConfig:
        """The configuration of a method by the file's settings; plain autoregression needs none.

        Raises:
            ValueError: The file has no settings of the method at the temperature, or this version of the program gives
                another configuration by them.
        """
        if name == "ar" and name not in self.methods:
            return resolve(name, temperature)
        if name not in self.methods:
            raise ValueError(
                f"--preset {self.path} holds no settings of '{name}'; {suggest(name, self.methods)}, or tune it too: "
                f"underpaint tune --methods {name}"
            )
        known = self.methods[name]
        chosen = known.greedy if temperature == 0 else known.sampled
        if chosen is None:
            other = known.sampled if temperature == 0 else known.greedy
            at = "none" if other is None else f"temperature {other.temperature:g} alone"
            raise ValueError(
                f"--preset {self.path}: expected settings of '{name}' for temperature {temperature:g}, got {at}; tune "
                f"it with --temperatures {temperature:g}"
            )
        config = resolve(name, temperature, None, chosen.settings, chosen.preset)
        if json.loads(json.dumps(config.to_dict())) != chosen.config:
            raise ValueError(
                f"--preset {self.path}: the settings of '{name}' give another configuration in this version than in "
                "the one that wrote the file; tune again"
            )
        return config

    def check(self, model: Mapping[str, Any], where: str) -> None:
        """Raise ValueError unless the models are those that the file was tuned on.

        Args:
            model: Their fingerprint.
            where: Their folder, for the message.
        """
        theirs, ours = self.model["sha256"], model["sha256"]
        target, here = self.model.get("target"), model.get("target")
        own = [str(name) for name in (here, model.get("drafter"), "target", "drafter") if name in ours]
        other = [name for name in own if theirs.get(name) != ours[name]]
        if other or not own:
            raise ValueError(
                f"--preset {self.path}: it was tuned on other models than those of {where} ({target} and {here}: "
                f"{', '.join(other) or 'no name'} differs); {_TUNE_AGAIN}, or choose --preset tuned"
            )
        if self.model.get("resolution") != model.get("resolution"):
            raise ValueError(
                f"--preset {self.path}: it was tuned at {self.model.get('resolution')} px, and {where} draws at "
                f"{model.get('resolution')} px; {_TUNE_AGAIN}, or choose --preset tuned"
            )

    def fingerprint(self) -> dict[str, str]:
        """Return its name and SHA-256, as records hold them."""
        return {"name": str(self), "sha256": digest(Path(self.path))}


def write_preset(path: Path, preset: PresetFile) -> None:
    """Write a preset file, whole or not at all."""
    values = {VERSION_KEY: VERSION, **asdict(preset)}
    del values["path"]
    write_beside(path, (json.dumps(values, indent=1) + "\n").encode())


def read_preset_file(path: Path) -> PresetFile:
    """Read a preset file.

    Raises:
        ValueError: The file is damaged, of another version, or no preset.
    """
    try:
        values = read_object(path)
        written = values.pop(VERSION_KEY, None)
        if not is_version(written, VERSION):
            raise ValueError(f"expected '{VERSION_KEY}': {VERSION}, got {written!r}")
        preset = build_typed(PresetFile, {"path": str(path), **values}, "preset")
        if not isinstance(preset.model.get("sha256"), Mapping):
            raise ValueError("preset: model: expected the SHA-256 of each model, as sha256")
        for name, chosen in preset.methods.items():
            for one in (chosen.sampled, chosen.greedy):
                if one is not None and one.preset not in PRESETS:
                    raise ValueError(f"preset: methods: {name}: preset: expected {' or '.join(PRESETS)}")
                if one is not None and (one.temperature == 0) != (one is chosen.greedy):
                    raise ValueError(f"preset: methods: {name}: 'greedy' is of temperature 0, 'sampled' above it")
    except ValueError as error:
        raise ValueError(f"--preset {path}: {error}; name a file that `underpaint tune` wrote") from error
    return preset
