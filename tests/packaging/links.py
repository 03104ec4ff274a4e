"""Make build/links/underpaint, which holds every folder of the project under its import name, for mypy."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def link_packages(root: Path = ROOT) -> Path:
    """Links to the folders that `tool.setuptools.package-dir` names; the folder that holds them."""
    named = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-dir"]
    package = root / "build" / "links" / "underpaint"
    package.mkdir(parents=True, exist_ok=True)
    targets = {name.partition(".")[2]: root / folder for name, folder in named.items() if "." in name}
    targets |= {path.name: path for path in (root / "underpaint").glob("*.py*") if path.is_file()}
    targets |= {"py.typed": root / "underpaint" / "py.typed"}
    for link in package.iterdir():
        if link.name not in targets:
            link.unlink()
    for name, place in targets.items():
        link = package / name
        if not link.is_symlink():
            link.symlink_to(place)
    return package


if __name__ == "__main__":
    link_packages()
