"""Cleaning of captions for LlamaGen's text encoder, applied twice as its authors do (`language/t5.py`).

Their code repairs broken encodings with `ftfy` and reads mark-up with `bs4`. To avoid these dependencies, this module
straightens quotes, composes characters and reads mark-up with Python's own parser. The result is the same for texts of
plain words, links, numbers and punctuation.
"""

from __future__ import annotations

import html
import re
import unicodedata
from html.parser import HTMLParser
from typing import Final
from urllib.parse import unquote_plus

_ENDINGS: Final = "png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4"
_DOMAINS: Final = r"[a-zA-Z0-9.\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)"
_DASHES: Final = "".join(
    map(
        chr,
        (
            *(0x2D, 0x58A, 0x5BE, 0x1400, 0x1806, *range(0x2010, 0x2016), 0x2E17, 0x2E1A, 0x2E3A, 0x2E3B, 0x2E40),
            *(0x301C, 0x3030, 0x30A0, 0xFE31, 0xFE32, 0xFE58, 0xFE63, 0xFF0D),
        ),
    )
)
_SCRIPTS: Final = (
    *((0x31C0, 0x31EF), (0x31F0, 0x31FF), (0x3200, 0x32FF), (0x3300, 0x33FF), (0x3400, 0x4DBF), (0x4DC0, 0x4DFF)),
    (0x4E00, 0x9FFF),
)
"""Blocks of characters to remove: strokes, katakana extensions, enclosed forms and ideographs."""
_Step = tuple[re.Pattern[str], str]


def _steps(*pairs: tuple[str, str]) -> tuple[_Step, ...]:
    return tuple((re.compile(pattern), put) for pattern, put in pairs)


_LINKS: Final = _steps(
    ("<person>", "person"),
    (rf"\b(?:https?:(?:/{{1,3}}|[a-zA-Z0-9%])|{_DOMAINS})", ""),
    (rf"\b(?:www:(?:/{{1,3}}|[a-zA-Z0-9%])|{_DOMAINS})", ""),
)
_CHARACTERS: Final = _steps(
    (r"@[\w\d]+\b", ""),
    *((f"[{chr(first)}-{chr(last)}]+", "") for first, last in _SCRIPTS),
    (f"[{re.escape(_DASHES)}]+", "-"),
    ("[`\u00b4\u00ab\u00bb\u201c\u201d\u00a8]", '"'),
    ("[\u2018\u2019]", "'"),
    ("&quot;?", ""),
    ("&amp", ""),
    (r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", " "),
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.(?:{_ENDINGS})", ""),
    (r"[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~)(\]\[}{|\\/*]+", " "),
    (r"\s+\.\s+", " "),
)
_JOINED: Final = re.compile("[-_]")
_CODES: Final = _steps(
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
    (r"\b\d+[a-zA-Z]+\d+\b", ""),
    (r"(worldwide\s+)?(free\s+)?shipping", ""),
    (r"(free\s)?download(\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b(?:{_ENDINGS})(\simage[s]?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
    (r"\b\d+\.?\d*[x\u0445\u00d7]\d+\.?\d*\b", ""),
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
    (r"^[\"']([\w\W]+)[\"']$", r"\1"),
    (r"^['_,\-:;]", ""),
    (r"['_,\-:+]$", ""),
    (r"^\.\S+$", ""),
)


def clean_caption(text: str) -> str:
    """Return the caption in lower case, without links, mark-up, codes and unusual characters; cleaned twice."""
    return _cleaned(_cleaned(text))


def _cleaned(text: str) -> str:
    text = _after(unquote_plus(text).strip().lower(), _LINKS)
    text = _after(_without_markup(text), _CHARACTERS)
    if len(_JOINED.findall(text)) > 3:  # this-is-my-cute-cat
        text = _JOINED.sub(" ", text)
    text = html.unescape(html.unescape(unicodedata.normalize("NFC", text))).strip()
    return _after(text, _CODES).strip()


def _after(text: str, steps: tuple[_Step, ...]) -> str:
    for pattern, put in steps:
        text = pattern.sub(put, text)
    return text


class _Text(HTMLParser):
    """Collects the text between tags."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        """See `HTMLParser`."""
        self.parts.append(data)


def _without_markup(text: str) -> str:
    parser = _Text()
    parser.feed(text)
    parser.close()
    return "".join(parser.parts)
