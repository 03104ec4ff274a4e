"""One meaning per class name, and no word that the field does not use."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("algos", "artifacts", "sim", "models", "export", "runtime", "zoo", "cli", "underpaint")
GONE = re.compile(
    r"\b(laws?|studios?|twins?|foresee|foreseen|[Oo]wed|owing|[Gg]rower|Growing|TableWorld|WORLDS|make_world|"
    r"RatioCosts|best_length|tokens_to_double|grow_at_once|fill_at_once|look_every)\b"
)


def sources() -> dict[str, str]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def test_every_public_class_name_stands_once() -> None:
    paths_by_name: dict[str, list[str]] = defaultdict(list)
    for path, text in sources().items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                paths_by_name[node.name].append(path)
    assert {name: paths for name, paths in paths_by_name.items() if len(paths) > 1} == {}


def test_words_that_went_do_not_come_back() -> None:
    words_by_path = {path: sorted({match.group() for match in GONE.finditer(text)}) for path, text in sources().items()}
    assert {path: words for path, words in words_by_path.items() if words} == {}
