"""Whether a file's format is one that this version reads, and what to do where it is not."""

from __future__ import annotations

from underpaint.artifacts.strict_json import is_version


def check_format(found: object, newest: int, remedy: str) -> None:
    """Raise ValueError unless a file's format is read here.

    Args:
        found: the format as the file names it; None where it names none.
        newest: the format that this version reads and writes.
        remedy: what to do with a file of an older format, or of none.
    """
    if is_version(found, newest):
        return
    expected = f"expected format {newest}"
    if type(found) is int and found > newest:
        raise ValueError(f"{expected}, got {found}: a newer version wrote it; install a newer underpaint")
    if type(found) is int and found >= 1:
        raise ValueError(f"{expected}, got {found}: an older version wrote it; {remedy}")
    raise ValueError(f"{expected}, got {'none' if found is None else repr(found)[:40]}; {remedy}")
