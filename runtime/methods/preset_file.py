"""Preset files, in which `underpaint tune` saves the settings it chose for a folder of models on a machine."""

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
    """The chosen settings of one method at one temperature, and the measurements of them.

    Attributes:
        temperature: The temperature of tuning.
        preset: The preset that the settings start from, "tuned" or "paper".
        settings: `name=value` changes to the preset.
        config: The method's full configuration with these settings, as JSON values. It is not built for the models, so
            it has no costs of this machine, and no number that is scaled to their codebook.
        lossless: Whether the method keeps the target's distribution with these settings.
        measured: Speedup and quality with their intervals, and the number of images.
    """

    temperature: float
    preset: str
    settings: tuple[str, ...]
    config: Mapping[str, Any]
    lossless: bool
    measured: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChosenMethod:
    """The chosen settings of one method above temperature 0 (`sampled`) and at 0 (`greedy`); None if not tuned."""

    sampled: ChosenSettings | None = None
    greedy: ChosenSettings | None = None


@dataclass(frozen=True, slots=True)
class PresetFile:
    """The content of a preset file; usable wherever the name of a preset is.

    Attributes:
        path: The path of the file, as the user gave it.
        command: The command that wrote the file.
        machine: The machine of the measurements.
        model: The fingerprint of the models; see `Pipeline.fingerprint`.
        tuning: How the settings were chosen: prompts, and the quality bound.
        methods: The chosen settings by method.
    """

    path: str
    command: str
    machine: Mapping[str, Any]
    model: Mapping[str, Any]
    tuning: Mapping[str, Any]
    methods: Mapping[str, ChosenMethod]

    def __str__(self) -> str:
        """Return the name of the file for titles and records."""
        return Path(self.path).name

    def config(self, name: str, temperature: float) -> MethodConfig:
        """Return the configuration of a method with the file's settings; plain autoregression needs no settings.

        Raises:
            ValueError: The file has no settings for the method at this temperature, or this version of the program
                derives a different configuration from them.
        """
        if name == "ar" and name not in self.methods:
            return resolve(name, temperature)
        if name not in self.methods:
            raise ValueError(
                f"--preset {self.path} holds no settings of '{name}'; {suggest(name, self.methods)}, or tune it too: "
                f"underpaint tune --methods {name}"
            )
        entry = self.methods[name]
        chosen = entry.greedy if temperature == 0 else entry.sampled
        if chosen is None:
            other = entry.sampled if temperature == 0 else entry.greedy
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
            model: The fingerprint of the models.
            where: The folder of the models, for the message.
        """
        theirs, ours = self.model["sha256"], model["sha256"]
        target, here = self.model.get("target"), model.get("target")
        names = [str(name) for name in (here, model.get("drafter"), "target", "drafter") if name in ours]
        other = [name for name in names if theirs.get(name) != ours[name]]
        if other or not names:
            raise ValueError(
                f"--preset {self.path}: it was tuned on other models than those of {where} ({target} and {here}: "
                f"{', '.join(other) or 'no name'} differs); {_TUNE_AGAIN}, or choose --preset tuned"
            )
        if model.get("quantization") is not None:
            raise ValueError(
                f"--preset {self.path}: it was tuned on weights that were not quantised to {model['quantization']}; "
                "choose --preset tuned, or leave --quantization out"
            )
        if self.model.get("resolution") != model.get("resolution"):
            raise ValueError(
                f"--preset {self.path}: it was tuned at {self.model.get('resolution')} px, and {where} draws at "
                f"{model.get('resolution')} px; {_TUNE_AGAIN}, or choose --preset tuned"
            )

    def fingerprint(self) -> dict[str, str]:
        """Return the name and SHA-256 of the file, for records."""
        return {"name": str(self), "sha256": digest(Path(self.path))}


def write_preset(path: Path, preset: PresetFile) -> None:
    """Write a preset file atomically."""
    values = {VERSION_KEY: VERSION, **asdict(preset)}
    del values["path"]
    write_beside(path, (json.dumps(values, indent=1) + "\n").encode())


def read_preset_file(path: Path) -> PresetFile:
    """Read a preset file; raise ValueError if it is damaged, of another version, or not a preset file."""
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
