"""The sources of the documentation site: every module and method has a page, and links lead somewhere in the site."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import docs_site
from underpaint.runtime.methods.registry import METHODS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    docs_site.main(["--out", str(out)])
    return out


def links(page: Path) -> Iterator[str]:
    fenced = False
    for line in page.read_text(encoding="utf-8").splitlines():
        fenced ^= line.startswith("```")
        if not fenced and not line.startswith("    "):
            yield from re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", line)


def test_every_public_module_and_every_method_has_a_page(sources: Path) -> None:
    modules = {path.name for path in (sources / "reference" / "modules").glob("*.md")}
    assert {"underpaint.algos.tree.md", "underpaint.runtime.pipeline.md", "underpaint.api.md"} <= modules
    assert {*docs_site.PACKAGES, "tests"} == {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert not [name for name in modules if "._" in name]
    for method in METHODS:
        text = (sources / "reference" / "by-name" / f"{docs_site.slug(method.name)}.md").read_text(encoding="utf-8")
        headings = ["Promise", "Source", "Settings", "Measured"]
        assert re.findall(r"^## (.+)$", text, re.MULTILINE)[:4] == headings, method.name
    assert "Lossless" in (sources / "reference" / "by-name" / "eagle2.md").read_text(encoding="utf-8")
    assert (sources / "reference" / "by-name" / "lantern.png").is_file()


def test_links_stay_inside_the_site(sources: Path) -> None:
    followed = 0
    for page in sources.rglob("*.md"):
        for target in links(page):
            if "://" not in target:
                assert (page.parent / target).exists(), (page.relative_to(sources), target)
                followed += 1
    assert followed > 200


def test_a_link_to_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_site, "DOCS", tmp_path / "docs")
    (tmp_path / "docs" / "folder").mkdir(parents=True)
    page = tmp_path / "docs" / "page.md"
    page.write_text("See [there](folder/).\n")
    with pytest.raises(SystemExit, match="expected a link to a file, got the folder folder/"):
        docs_site.Site(tmp_path / "out").document(page)
