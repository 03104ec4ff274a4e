"""Result files: one versioned form for all commands, so that files from other people can be read and merged."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from underpaint.artifacts.results_sense import contradictions
from underpaint.artifacts.strict_json import is_version, read_object

VERSION: Final = 1
"""Version of the form that `results_schema.json` describes."""
VERSION_KEY: Final = "results_version"
KINDS: Final = ("compare", "sweep", "evaluate", "certify", "certify-case", "invariance", "premises")

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


_LARGE: Final = 8 << 10
"""Results with more bytes than this are written without line breaks, as nobody reads them line by line."""


class ResultsError(ValueError):
    """A results file that is missing, damaged, of another version, or does not match the schema."""


@lru_cache(maxsize=1)
def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of every kind of results."""
    text = files("underpaint.artifacts").joinpath("results_schema.json").read_text(encoding="utf-8")
    json_schema: dict[str, Any] = json.loads(text)
    return json_schema


def results_text(values: Any) -> str:
    """JSON of results: one value per line, or without spaces if that is larger than `_LARGE`; ends with a newline."""
    text = json.dumps(values, indent=1)
    return (text if len(text) <= _LARGE else json.dumps(values, separators=(",", ":"))) + "\n"


def with_envelope(kind: str, machine: Mapping[str, Any], command: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as results of a kind, with the version, and the machine and command that made them."""
    return {VERSION_KEY: VERSION, "kind": kind, "command": command, "machine": dict(machine), **values}


def read_results(path: Path) -> dict[str, Any]:
    """Read a results file; raises ResultsError if it is missing, not JSON, of another version, or invalid."""
    results = _read_object(path)
    version = results.get(VERSION_KEY)
    if version is None:
        raise ResultsError(
            f"{path}: expected results of version {VERSION}, got a file without '{VERSION_KEY}'; name a file that "
            "`underpaint` wrote with --json"
        )
    if not is_version(version, VERSION):
        newer = type(version) is int and version > VERSION
        todo = "install a newer underpaint" if newer else "repeat the command that wrote it"
        raise ResultsError(f"{path}: results of version {version!r}, this reads version {VERSION}; {todo}")
    problems = problems_of(results)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ResultsError(f"{path}: {problems[0]}{more}; write it again, or mend the file")
    return results


def fingerprint(results: Mapping[str, Any]) -> str:
    """12 hex digits that identify a run by kind, machine, model (its hashes) and settings, not by its figures."""
    identity = {
        key: results.get(key) for key in ("kind", "machine", "model", "settings", "verifier", "models", "weights")
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def merged(results: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Merge results from one or several sources, each with its name and fingerprint; equal runs appear once.

    Args:
        results: File names and their contents, which may be merged results.

    Returns:
        Results of the kind "merged".

    Raises:
        ResultsError: Two runs with the same fingerprint and command have different figures.
    """
    runs: dict[str, dict[str, Any]] = {}
    for name, file_results in results:
        alone: list[dict[str, Any]] = [{"name": name, "results": file_results}]
        parts: list[dict[str, Any]] = file_results["runs"] if file_results.get("kind") == "merged" else alone
        for part in parts:
            key = fingerprint(part["results"])
            content = json.dumps(part["results"], sort_keys=True)
            clash = key in runs and json.dumps(runs[key]["results"], sort_keys=True) != content
            if clash and runs[key]["results"].get("command") == part["results"].get("command"):
                raise ResultsError(
                    f"{name}: it has the machine, model, settings and command of {runs[key]['name']} ({key}) and other "
                    "figures; keep one of them"
                )
            if clash:
                key = hashlib.sha256(content.encode()).hexdigest()[:12]
            runs.setdefault(key, {"name": part["name"], "fingerprint": key, "results": dict(part["results"])})
    return {VERSION_KEY: VERSION, "kind": "merged", "runs": list(runs.values())}


def problems_of(results: Mapping[str, Any]) -> list[str]:
    """Violations of the schema, or contradictions, in results, each with its place."""
    return validate(results, schema()) or contradictions(results)


def validate(value: Any, rule: Mapping[str, Any], at: str = "", whole: Mapping[str, Any] | None = None) -> list[str]:
    """Violations of a JSON Schema in `value`, each with its place. Supports the keywords that our schema uses."""
    whole = rule if whole is None else whole
    place = at or "the file"
    if "$ref" in rule:
        return validate(value, whole["$defs"][rule["$ref"].rpartition("/")[2]], at, whole)
    if "oneOf" in rule:
        return _validate_kind(value, rule["oneOf"], at, whole)
    problems: list[str] = []
    kinds = rule.get("type")
    if kinds is not None:
        names = [kinds] if isinstance(kinds, str) else kinds
        if not any(_is(value, name) for name in names):
            return [f"{place}: expected {' or '.join(names)}, got {json.dumps(value)[:80]}"]
    if "const" in rule and (type(value) is not type(rule["const"]) or value != rule["const"]):
        problems.append(f"{place}: expected {rule['const']!r}, got {value!r}")
    if "enum" in rule and value not in rule["enum"]:
        problems.append(f"{place}: expected one of {', '.join(map(str, rule['enum']))}, got {value!r}")
    if "minimum" in rule and _is(value, "number") and value < rule["minimum"]:
        problems.append(f"{place}: expected {rule['minimum']} or more, got {value}")
    if "maximum" in rule and _is(value, "number") and value > rule["maximum"]:
        problems.append(f"{place}: expected {rule['maximum']:g} or less, got {value}")
    if isinstance(value, list) and not rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", len(value)):
        most = f" to {rule['maxItems']}" if "maxItems" in rule else " or more"
        problems.append(f"{place}: expected {rule.get('minItems', 0)}{most} of them, got {len(value)}")
    if isinstance(value, dict):
        problems += [f"{place}: '{name}' is missing" for name in rule.get("required", ()) if name not in value]
        properties = rule.get("properties", {})
        for name, item in value.items():
            subschema = properties.get(name, rule.get("additionalProperties", True))
            if subschema is False:
                problems.append(f"{place}: unknown field '{name}'; known: {', '.join(sorted(properties))}")
            elif isinstance(subschema, Mapping):
                problems += validate(item, subschema, f"{at}.{name}".lstrip("."), whole)
    if isinstance(value, list) and "items" in rule:
        for turn, item in enumerate(value):
            problems += validate(item, rule["items"], f"{at}[{turn}]", whole)
    return problems


def _validate_kind(value: Any, choices: Sequence[Mapping[str, Any]], at: str, whole: Mapping[str, Any]) -> list[str]:
    """Validate against the choice with the `kind` of the value, so that messages are about that kind."""
    by_kind = {
        whole["$defs"][choice["$ref"].rpartition("/")[2]]["properties"]["kind"]["const"]: choice for choice in choices
    }
    if not isinstance(value, dict):
        return [f"{at or 'the file'}: expected object, got {json.dumps(value)[:80]}"]
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in by_kind:
        return [f"{at or 'the file'}: kind: expected one of {', '.join(by_kind)}, got {kind!r}"]
    return validate(value, by_kind[kind], at, whole)


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (not isinstance(value, bool) or name == "boolean")


def _read_object(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ResultsError(f"{path}: there is no such file; check the name")
    try:
        return read_object(path)
    except ValueError as error:
        raise ResultsError(f"{path}: {error}") from error
