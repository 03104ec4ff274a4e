"""Speculative decoding of visual autoregressive image models: a testbed, and the runtime that deploys it."""

from pathlib import Path

# In a checkout the folders of the project lie beside this one; an installed copy holds them itself. With this line
# `import underpaint` works in a bare checkout too, as on a machine without a package index.
_beside = Path(__file__).resolve().parent.parent
if (_beside / "algos" / "chance.py").is_file() and not (_beside / "underpaint" / "algos").is_dir():
    __path__.append(str(_beside))
