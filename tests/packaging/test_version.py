"""One version: `pyproject.toml` states it, and every other file repeats it."""

import json
import re
import tomllib
from pathlib import Path

import underpaint

ROOT = Path(__file__).resolve().parents[2]


def project(folder: str) -> dict[str, str]:
    table: dict[str, str] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def test_every_file_repeats_the_version_of_the_project() -> None:
    version = project(".")["version"]
    (cited,) = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    archived = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))["version"]
    zoo = project("distributions/zoo")["version"]
    assert {cited, archived, zoo, underpaint.__version__} == {version}


def test_the_changelog_has_the_version_or_what_becomes_it() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert headings[0] == "Unreleased"
    version = project(".")["version"]
    assert version in headings or f"Version {version}, not yet released." in text
    kinds = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
