"""The commands of the README and the documents, with what a page says of running them.

A block is a run of lines indented by four spaces. `<!-- parsed, not run: REASON -->` above a block is of that block;
above text it is of the whole page.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = tuple(
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "results" not in page.relative_to(ROOT).parts  # made of recorded commands: those were run
)
REASONS: Final = (
    "hours of training",
    "hours of measuring",
    "needs a GPU",
    "needs published weights",
    "needs published prompts",
    "needs the checkout",
    "serves until it is stopped",
    "needs a file of yours",
    "needs the projects' own code",
    "minutes of measuring, recorded in ",
)
"""What a tag may begin with. The last is not for the README, the tutorial and the how-tos."""
_TAG: Final = re.compile(r"<!-- parsed, not run: (.+?) -->")
_PROGRAM: Final = re.compile(r"(?:\w+=\S+ )*(?:\.venv/bin/)?(underpaint|python -m|pip|make) ")


@dataclass(frozen=True)
class Command:
    """One line of a shell. page: relative to the checkout; exit_code: what `# exit code N` behind it says, else 0."""

    page: str
    line: str
    why_not_run: str | None = None
    exit_code: int = 0

    @property
    def program(self) -> str:
        """What is called: underpaint, python -m, pip or make."""
        match = _PROGRAM.match(self.line)
        assert match is not None
        return match.group(1)


def page_commands(page: str, text: str) -> list[Command]:
    """The commands of a page, in order, continued lines joined, a shell's variables put in."""
    text = re.sub(r" *\\\n\s+", " ", text)
    for name, value in re.findall(r'^    (\w+)="(.*)"$', text, re.MULTILINE):
        text = text.replace(f"${name}", value)
    commands: list[Command] = []
    whole_page: str | None = None
    block: str | None = None
    waiting: str | None = None
    for line in text.splitlines():
        if tag := _TAG.fullmatch(line.strip()):
            waiting = tag.group(1)
        elif line.startswith("    "):
            block, waiting = waiting or block, None
            if _PROGRAM.match(line.strip()):
                code = re.search(r"# exit code (\d)", line)
                commands.append(Command(page, line.strip(), whole_page or block, int(code.group(1)) if code else 0))
        elif line.strip():
            whole_page, waiting, block = waiting or whole_page, None, None
    return commands


def documented_commands() -> list[Command]:
    """Those of every page that is written by hand."""
    return [
        one
        for page in PAGES
        for one in page_commands(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))
    ]
