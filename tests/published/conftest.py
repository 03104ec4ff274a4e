"""One exported tokenizer for all tests, and one export of equal modules: torch's own exporter takes its time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exported_once import exports_shared
from tests.published.checkpoints import save_vq
from underpaint.export.checkpoint import Request, export_checkpoint


@pytest.fixture(scope="session", autouse=True)
def _graphs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with exports_shared(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a tiny tokenizer's models."""
    work = tmp_path_factory.mktemp("tokenizer")
    save_vq(work / "vq.pt")
    export_checkpoint(Request("vq", work / "vq.pt", neighbours=24), work / "out")
    return work / "out"
