"""Ways of OpenBLAS to round matrix products that `make test` does not see: `python -m tests.kernels` names them.

They are those of AMD and older Intel machines, and of AVX-512 or, where there is none, of still older machines; the one
that this machine takes by itself is the one of `make test`.
"""

import ctypes
from pathlib import Path

import numpy as np

CPU_INFO = Path("/proc/cpuinfo")
ALIKE = {"Zen": "Haswell", "Cooperlake": "SkylakeX", "SapphireRapids": "SkylakeX"}
"""Processors whose products of float64 are another's."""


def own() -> str:
    """What OpenBLAS takes by itself; empty where NumPy brings another library."""
    for library in (Path(np.__file__).parent.parent / "numpy.libs").glob("libscipy_openblas*"):
        name = ctypes.CDLL(str(library)).scipy_openblas_get_corename64_
        name.restype = ctypes.c_char_p
        return str(name().decode())
    return ""


def others() -> list[str]:
    """The remaining ones that run here."""
    wide = CPU_INFO.exists() and "avx512f" in CPU_INFO.read_text()
    here = own()
    return [one for one in ("Haswell", "SkylakeX" if wide else "Nehalem") if one != ALIKE.get(here, here)]


if __name__ == "__main__":
    print(*others())
