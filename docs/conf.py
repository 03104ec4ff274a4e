"""Settings of the documentation site, which `make docs` builds from what tools/docs_site.py writes."""

import logging
import re
from pathlib import Path

import underpaint

project = "Underpaint"
author = "The Underpaint developers"
copyright = "The Underpaint developers, Apache-2.0"
version = release = underpaint.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# Several modules may have a class of one name; a short name in a docstring is then no link.
suppress_warnings = ["ref.python"]
html_theme = "pydata_sphinx_theme"
html_title = f"Underpaint {release}"
html_theme_options = {
    "show_toc_level": 2,
    "collapse_navigation": True,
    "navigation_depth": 1,
    "show_nav_level": 1,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "use_edit_page_button": False,
}
# A page of a module does not list all modules beside it.
html_sidebars = {"reference/modules/*": [], "reference/packages/*": []}
html_extra_path = [path for path in ("extra",) if (Path(__file__).parent / path).is_dir()]
html_show_sourcelink = False
highlight_language = "none"  # commands of a shell
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
nitpicky = False


def _literal_blocks(lines: list[str]) -> list[str]:
    """Docstrings as reStructuredText reads them.

    Single backticks hold code, and an indented block below a blank line is code too. Google's sections are left alone.
    """
    converted: list[str] = []
    sections = ("Args:", "Returns:", "Raises:", "Yields:", "Attributes:", "Note:", "Example:", "Examples:")
    code = section = False
    for line in lines:
        indented = line.startswith("    ")
        if line.strip() in sections and not indented:
            section = True
        elif line.strip() and not indented:
            code = section = False
        if indented and not section and not code and converted and not converted[-1].strip():
            converted += ["::", ""]
            code = True
        if not code:
            parts = re.split(r"(`+[^`]+`+)", line)
            escaped = (re.sub(r"([*|\\])|(?<=\w)(_)(?!\w)", r"\\\g<0>", part) for part in parts[::2])
            codes = [f"``{part.strip('`')}``" for part in parts[1::2]] + [""]
            line = "".join(text + part for text, part in zip(escaped, codes, strict=True))
        converted.append(line)
    return converted


def _process_docstring(app, what, name, obj, options, lines) -> None:  # type: ignore[no-untyped-def]
    lines[:] = _literal_blocks(lines)


class _Docstrings(logging.Filter):
    """Drop complaints about docstrings, which are plain text first, and about signatures of Typer's options."""

    def filter(self, record: logging.LogRecord) -> bool:
        location = getattr(record, "location", "")
        of_docstring = "docstring of" in str(getattr(location, "source", location))
        return not of_docstring and not str(record.msg).startswith("error while formatting arguments")


def setup(app) -> None:  # type: ignore[no-untyped-def]
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _process_docstring, priority=400)
    for handler in logging.getLogger("sphinx").handlers:
        handler.filters.insert(0, _Docstrings())
