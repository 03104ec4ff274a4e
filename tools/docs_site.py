"""Write the sources of the documentation site: the documents, a page for each module, and a page for each method.

Run: python tools/docs_site.py [--out build/docs-source] [--comparison FOLDER]

`make docs` runs it, then Sphinx. Nothing that it writes is committed. The documents link to each other and to files of
the checkout, as the code host shows them; in the site, links to files outside docs/ lead to the module's page or to a
copy of the file. FOLDER is what `underpaint compare --save-replay` wrote; its page becomes the site's gallery.
"""

import argparse
import json
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PACKAGES = ("underpaint", "algos", "sim", "artifacts", "zoo", "runtime", "models", "export", "training", "serve", "cli")
RECORDS = ("textured-compare-128-t1.json", "textured-compare-128-t0.json")
GALLERY_METHODS = ("ar", "jacobi-lookup", "lantern", "adt+lantern", "mulo-islands")
"""The methods in docs/gallery.png, from the first row to the last."""
PAGES_BESIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")


class Site:
    """The sources of the site, written below `out`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)

    def write(self, page: str, text: str) -> None:
        """Write a page, named relative to the site's root."""
        (self.out / page).parent.mkdir(parents=True, exist_ok=True)
        (self.out / page).write_text(text, encoding="utf-8")

    def document(self, source: Path) -> None:
        """Write a Markdown file or a notebook of the checkout, with links changed to pages of the site."""
        text = _notebook(source) if source.suffix == ".ipynb" else source.read_text(encoding="utf-8")
        page = self.place(source)
        fenced = False
        lines = []
        for line in text.splitlines():
            fenced ^= line.startswith("```")
            code = fenced or line.startswith("    ")
            lines.append(line if code else _LINK.sub(lambda link: self._link(link, source, page), line))
        self.write(page, "\n".join(lines) + "\n")

    def place(self, source: Path) -> str:
        """Return the page of a file of the checkout, relative to the site's root; files without a page get a copy."""
        if source.is_relative_to(DOCS):
            relative_path = source.relative_to(DOCS).as_posix()
            return "tutorial/notebook.md" if relative_path == "tutorial.ipynb" else relative_path
        relative_path = source.relative_to(ROOT).as_posix()
        if source.suffix == ".md":
            return f"project/{relative_path.replace('/', '-').lower()}"
        if source.suffix == ".py" and relative_path.partition("/")[0] in PACKAGES:
            return f"reference/modules/{module_name(source)}.md"
        return f"files/{relative_path}"

    def _link(self, link: re.Match[str], source: Path, page: str) -> str:
        target, hash_, anchor = link[2].partition("#")
        path = Path(os.path.normpath(source.parent / target))
        if not target or "://" in target or not path.exists():
            return link[0]  # Sphinx reports broken links
        if path.is_dir():
            raise SystemExit(f"{source}: expected a link to a file, got the folder {link[2]}; name a file in it")
        place = self.place(path)
        if path.suffix not in (".md", ".ipynb") and not place.endswith(".md"):
            (self.out / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, self.out / place)
        elif path.suffix == ".md" and not path.is_relative_to(DOCS) and not (self.out / place).exists():
            self.write(place, "")  # it may link to itself
            self.document(path)
        return f"{link[1]}{posixpath.relpath(place, posixpath.dirname(page))}{hash_}{anchor}{link[3]}"


def _notebook(source: Path) -> str:
    """Return a notebook as Markdown."""
    cells = []
    for cell in json.loads(source.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        cells.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(cells) + "\n"


def toctree(pages: Iterator[str] | list[str] | tuple[str, ...], *, hidden: bool = False, depth: int = 1) -> str:
    """Return a table of contents in MyST's syntax."""
    options = f":maxdepth: {depth}\n" + (":hidden:\n" if hidden else "")
    return "```{toctree}\n" + options + "\n" + "\n".join(pages) + "\n```\n"


def module_name(file: Path) -> str:
    """Return the import name of a module of the checkout."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "underpaint" else ("underpaint", *parts)
    return ".".join(parts).removesuffix(".__init__")


def public_modules(package: str) -> list[Path]:
    """Return the public modules of a top-level folder that are not empty, the package's own module first."""
    files = sorted((ROOT / package).rglob("*.py"), key=module_name)
    private = [file for file in files if any(part.startswith("_") for part in module_name(file).split("."))]
    return [file for file in files if file not in private and file.read_text(encoding="utf-8").strip()]


def write_modules(site: Site) -> None:
    """Write one page for each public module, and one list for each top-level package."""
    for package in PACKAGES:
        modules = public_modules(package)
        package_name = "underpaint" if package == "underpaint" else f"underpaint.{package}"
        for file in modules:
            name = module_name(file)
            own_page = (
                () if file.name != "__init__.py" else ("no-index",)
            )  # its names have a page where they are defined
            shown_parts = ("members", "undoc-members", "show-inheritance", *own_page)
            options = "".join(f"   :{option}:\n" for option in shown_parts)
            body = f"```{{eval-rst}}\n.. automodule:: {name}\n{options}```\n"
            site.write(f"reference/modules/{name}.md", f"# {name.removeprefix('underpaint.')}\n\n{body}")
        names = [module_name(file) for file in modules]
        site.write(
            f"reference/packages/{package_name}.md",
            f"# {package_name}\n\n" + toctree([f"../modules/{name}" for name in names]),
        )
    listed = ["underpaint", *(f"underpaint.{package}" for package in PACKAGES[1:])]
    site.write(
        "reference/modules.md",
        "# Modules\n\nEvery public module has a page. Each line of the list is a package; the layers import downwards "
        "only ([architecture](../explanation/architecture.md)).\n\n" + toctree([f"packages/{name}" for name in listed]),
    )


def slug(method: str) -> str:
    """Return the name of a method's page."""
    return method.replace("++", "-plus-plus").replace("+", "-with-")


def write_methods(site: Site) -> None:
    """Write one page for each registered method, and their list."""
    from benchmarks.pages import PROTOCOL_FILE, RESULTS
    from underpaint.algos.accept import RULES
    from underpaint.artifacts.results import read_results
    from underpaint.cli.methods import listed
    from underpaint.runtime.protocol.tables import card

    described = listed()
    policies = {one["name"]: one for one in described["policies"]}
    rules = {one["name"]: one for one in described["rules"]}
    records = [json.loads((RESULTS / name).read_text(encoding="utf-8")) for name in RECORDS]
    protocol = read_results(RESULTS / PROTOCOL_FILE)
    lines = ["# Method by method", "", "What each method does, its promise, its settings, and what was measured.", ""]
    lines += ["| method | what it does |", "|---|---|"]
    for method in described["methods"]:
        config = method["presets"]["tuned"]["sampled"]
        name, summary = method["name"], _sentence(method["summary"])
        lines.append(f"| [`{name}`](by-name/{slug(name)}.md) | {summary} |")
        rule = config.get("rule")
        parts = [f"# {name}\n\n{summary} It draws by {method['draws_by']}."]
        if method["draws_by_at_temperature_0"] != method["draws_by"]:
            parts.append(f"At temperature 0 it draws by {method['draws_by_at_temperature_0']}.")
        parts.append(f"    underpaint generate --method {name} --out picture.png")
        parts.append("## Promise\n\n" + _promise(rule, config.get("rule_settings", {}), rules, RULES))
        parts.append("## Source\n\n" + _sources(method, policies.get(config.get("policy")), rules.get(rule)))
        parts.append("## Settings\n\n" + _settings(method["presets"]))
        parts.append("## Measured\n\n" + (card(protocol, name) or _measured(name, records)))
        if picture := _picture(site, name):
            parts.append(f"## Pictures\n\n![What {name} draws, one picture a prompt]({picture})")
        site.write(f"reference/by-name/{slug(name)}.md", "\n\n".join(parts) + "\n")
    pages = [f"by-name/{slug(one['name'])}" for one in described["methods"]]
    site.write("reference/by-name.md", "\n".join(lines) + "\n\n" + toctree(pages, hidden=True))


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return text[:1].upper() + text[1:] + "."


def _promise(rule: str | None, settings: dict[str, Any], rules: dict[str, dict[str, Any]], registry: Any) -> str:
    if rule is None or rule not in rules:
        return "No exact promise: the loop accepts without a rule, and its pictures differ from AR's in distribution."
    if registry[rule].is_lossless(settings):
        return f"Lossless, by the rule `{rule}`: the tokens follow the target's own distribution."
    bound = rules[rule]["bound"]
    return f"{_sentence(rules[rule]['promise'])} The rule is `{rule}`" + (f": {bound}." if bound else ".")


def _sources(method: dict[str, Any], *parts: dict[str, Any] | None) -> str:
    lines = [f"- `{part['name']}`: {part['source']}" for part in parts if part is not None and part["source"]]
    for preset, settings in method["presets"].items():
        lines += [f"- {names} ({preset}): {source}" for names, source in settings["sources"].items()]
    text = "\n".join(lines) or "- This project."
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def _settings(presets: dict[str, Any]) -> str:
    from underpaint.runtime.methods.settings import settings_line

    rows = ["| preset | above temperature 0 | at temperature 0 |", "|---|---|---|"]
    for name, preset in presets.items():
        warm, cold = (settings_line(preset[part]).replace("|", "\\|") or "none" for part in ("sampled", "greedy"))
        rows.append(f"| `{name}` | {warm} | {cold} |")
    return "\n".join(rows)


def _measured(name: str, records: list[dict[str, Any]]) -> str:
    rows = ["| temperature | images | speedup (95 %) | target passes | drafter passes | prompt accuracy | lossless |"]
    rows += ["|---|---|---|---|---|---|---|"]
    for record in records:
        for row in record["rows"]:
            if row["method"] != name:
                continue
            interval = "" if row["speedup_low"] is None else f" ({row['speedup_low']:.2f} to {row['speedup_high']:.2f})"
            accuracy = "-" if row["prompt_accuracy"] is None else f"{row['prompt_accuracy']:.2f}"
            rows.append(
                f"| {record['settings']['temperature']:g} | {row['images']} | {row['speedup']:.2f}{interval} | "
                f"{row['target_nfe']:.0f} | {row['drafter_nfe']:.0f} | {accuracy} | "
                f"{'yes' if row['lossless'] else 'no'} |"
            )
    if len(rows) == 2:
        return "No recorded comparison of the shipped models at 128 px has this method."
    machine = records[0]["machine"]
    where = f"128 px, shipped models, {machine['cores']} cores of {machine['processor']}."
    return "\n".join(rows) + f"\n\n{where} Commands and records: [results](../../results/index.md)."


def _picture(site: Site, name: str) -> str | None:
    """Cut the method's row out of the gallery and return the name of the new file; None if there is no such row."""
    if name not in GALLERY_METHODS:
        return None
    from PIL import Image

    with Image.open(DOCS / "gallery.png") as gallery:
        # All rows have the same height and end at the lower edge; `write_gallery` sets their pitch.
        inches = 1.9 + 5 * 1.35 + 0.15
        pitch, lower = (gallery.width * part / inches for part in (1.35, 0.15))
        top = gallery.height - lower - pitch * (len(GALLERY_METHODS) - GALLERY_METHODS.index(name))
        row = gallery.convert("RGB").crop((0, round(top), gallery.width, round(top + pitch)))
    place = site.out / "reference" / "by-name" / f"{slug(name)}.png"
    place.parent.mkdir(parents=True, exist_ok=True)
    row.save(place)
    return place.name


def write_gallery(site: Site, comparison: Path | None) -> None:
    """Write the page of pictures, with the comparison's own page inside it."""
    text = "# Gallery\n\nEach row is a method, each column a prompt.\n\n![Pictures by method](gallery.png)\n"
    shutil.copyfile(DOCS / "gallery.png", site.out / "gallery.png")
    if comparison is not None:
        (site.out / "extra" / "replays").mkdir(parents=True)
        shutil.copyfile(comparison / "report.html", site.out / "extra" / "replays" / "report.html")
        attributes = 'loading="lazy" src="replays/report.html" title="Replays" '
        attributes += 'style="width:100%;height:60rem;border:0"'
        text += (
            "\n## Replays\n\nDrag the slider of a replay to see which cells each pass accepted. The page below is what "
            "`underpaint report` writes for a comparison of two prompts.\n\n```{raw} html\n"
            '<p><a href="replays/report.html">Open it alone</a></p>\n'
            f"<iframe {attributes}></iframe>\n```\n"
        )
    site.write("gallery.md", text)


def write_index(site: Site) -> None:
    """Add tables of contents to the index, and one page for each of its sections."""
    text = (site.out / "index.md").read_text(encoding="utf-8")
    sections = []
    for heading, body in re.findall(r"^\*\*(.+?)\*\*.*\n\n((?:- .*\n(?:  .*\n)*)+)", text, re.MULTILINE):
        pages = [link.removesuffix(".md") for link in re.findall(r"\]\((\S+?\.md)\)", body)]
        folder = pages[0].partition("/")[0] if pages else ""
        pages += sorted({f"{folder}/{page.stem}" for page in (site.out / folder).glob("*.md")} - {*pages})
        if heading == "Reference":
            pages.sort(key=["reference/by-name", "reference/modules"].__contains__)  # these two list further pages
        name = f"{slug(heading.lower().replace(' ', '-'))}-pages"
        site.write(f"{name}.md", f"# {heading}\n\n{body}\n" + toctree(pages, hidden=True))
        sections.append(name)
    results = ["results/index"]
    others = sorted(f"results/{page.stem}" for page in (site.out / "results").glob("*.md") if page.stem != "index")
    named = " ".join((site.out / f"{name}.md").read_text(encoding="utf-8") for name in sections)
    others = [page for page in others if f"\n{page}\n" not in named]
    index = (site.out / "results" / "index.md").read_text(encoding="utf-8")
    site.write("results/index.md", index + "\n" + toctree([page.partition("/")[2] for page in others], hidden=True))
    project = sorted(f"project/{page.stem}" for page in (site.out / "project").glob("*.md"))
    site.write("project.md", "# Project\n\n" + toctree(project))
    pages = [sections[0], "gallery", *sections[1:], *results, "project"]
    more = "\n[Gallery and replays](gallery.md), [method by method](reference/by-name.md), "
    more += "[modules](reference/modules.md)\n"
    site.write("index.md", text + more + "\n" + toctree(pages, hidden=True))


def main(arguments: list[str] | None = None) -> None:
    """Write the sources of the site."""
    parser = argparse.ArgumentParser(prog="python tools/docs_site.py", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs-source", help="folder, replaced")
    parser.add_argument("--comparison", type=Path, help="folder of a comparison with replays and its report.html")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT))
    site = Site(options.out)
    for source in (*DOCS.rglob("*.md"), DOCS / "tutorial.ipynb", *(ROOT / name for name in PAGES_BESIDE)):
        if source.is_file():
            site.document(source)
    shutil.copyfile(DOCS / "conf.py", site.out / "conf.py")
    write_modules(site)
    write_methods(site)
    write_gallery(site, options.comparison)
    write_index(site)


if __name__ == "__main__":
    main()
