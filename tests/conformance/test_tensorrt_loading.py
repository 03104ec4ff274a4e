"""Which engines of TensorRT are loaded, and how many: as few as the sampling needs."""

from gc import collect
from pathlib import Path
from shutil import copytree, ignore_patterns

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.conformance import stand_in
from tests.conformance.on_tensorrt import BUCKETS, opened
from tests.conformance.test_engine import TOKENS
from underpaint.algos.rows import SamplingParams
from underpaint.cli.app import app as underpaint
from underpaint.runtime.engines import device_memory
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.pass_inputs import causal
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.engines.tensorrt_engine import row_bytes
from underpaint.runtime.evaluation.invariance import check_invariance


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.stand_in(monkeypatch)
    monkeypatch.setattr("underpaint.runtime.engines.tensorrt_files.backend_module", lambda backend: None)


def test_a_batch_that_does_not_fit_is_refused_with_bytes_and_the_largest(
    halves: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = opened("target", halves / "reference")
    most = 2 * row_bytes(loaded.config, BUCKETS) - 1
    monkeypatch.setattr(device_memory.torch.cuda, "mem_get_info", lambda: (most, most))
    with pytest.raises(EngineError, match=rf"2 rows need {most + 1:,} bytes .* has {most:,} free; .* has 1 rows"):
        loaded.open(2)
    assert loaded.open(1).rows == 1


def test_what_an_engine_was_not_built_for_is_said(halves: Path) -> None:
    loaded = opened("target", halves / "reference")
    with pytest.raises(
        EngineError,
        match=r"passes of 1 to 2 rows, for which the tensorrt-rtx engine .*, got 3 .* --rows 1,3",
    ):
        loaded.open(3)
    target = EngineTarget(loaded, SamplingParams(guidance=2.0))
    with pytest.raises(EngineError, match="expected cells from -1 to 15"):
        target.engine.run(TOKENS[:1], np.array([16]), causal(1))
    with pytest.raises(EngineError, match="expected at most 16 new positions a pass, got 17"):
        target.engine.run(np.zeros(17, dtype=np.int64), np.arange(17) % 16, causal(17))


def test_one_engine_is_loaded_whatever_the_sampling(halves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two plans are read once for all that run it, whatever their number of rows."""
    read: list[str] = []
    as_ever = Path.read_bytes

    def counted(path: Path) -> bytes:
        read.append(path.name)
        return as_ever(path)

    loaded = opened("target", halves / "reference")
    monkeypatch.setattr(Path, "read_bytes", counted)
    collect()
    before = len(stand_in.Engine.live)
    target = EngineTarget(loaded, SamplingParams(guidance=2.0))
    assert len(stand_in.Engine.live) == before, "nothing is loaded before it is needed"
    for guidance in (2.0, 3.0, 1.0, 1.0, 2.0):
        target.sample_by(SamplingParams(guidance=guidance))
        target.prepare(target.encoder.of_ids(np.array([3])))
        target.begin()
        collect()
        assert len(stand_in.Engine.live) == before + 2
        assert target.engine.rows == (1 if guidance == 1 else 2)
    others = [loaded.open(2) for _ in range(2)]
    assert len(stand_in.Engine.live) == before + 2, "engines share what was loaded"
    engines = [name for name in read if name.endswith(".engine")]
    assert engines == [f"target.{part}.{stand_in.BACKEND}.engine" for part in ("layers", "head")]
    target.close()
    for other in others:
        other.close()
    del others, other
    collect()
    assert len(stand_in.Engine.live) == before


def test_what_was_built_is_what_is_asked_for(halves: Path, tmp_path: Path) -> None:
    """An engine of one row serves guidance 1, though the models are meant to be sampled with another."""
    folder = tmp_path / "one"
    copytree(halves / "reference", folder, ignore=ignore_patterns("*.engine", "*.record", "*.runtime"))
    common = [
        "compare",
        "1",
        "--preset",
        "tuned",
        "--models",
        str(folder),
        "--top-k",
        "0",
        "--fresh",
        "--backend",
        stand_in.BACKEND,
    ]
    for arguments, message in (
        (["--methods", "ar"], "holds no tensorrt-rtx engine of 'target.layers'; build it with"),
        (["--methods", "ar"], "passes of 1 to 1 rows, for which the tensorrt-rtx engine of 'target.layers' was built"),
        (["--methods", "zipar"], "--rows 1,2`"),
    ):
        result = CliRunner().invoke(underpaint, [*common, *arguments, "--out", str(tmp_path / "no")])
        assert result.exit_code == 2
        assert message in " ".join(result.output.split()), result.output
        assert not (tmp_path / "no").exists()
        for name in ("target", "drafter"):
            stand_in.build(folder, name, BUCKETS, (1,))
    rest = ["--methods", "ar,eagle2", "--guidance", "1", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(underpaint, [*common, *rest])
    assert result.exit_code == 0, result.output


def test_passes_of_the_rows_that_were_built_are_compared(halves: Path) -> None:
    opened("target", halves / "reference")
    comparisons = list(check_invariance(halves / "reference", ("target",), stand_in.BACKEND))
    assert {one.rows for one in comparisons} == {1, 2}
    assert max(one.count for one in comparisons) == 16
    assert all(one.passed for one in comparisons)


def test_an_engine_lends_its_memory_until_it_is_closed(halves: Path) -> None:
    engine = opened("target", halves / "reference").open(1)
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.run(TOKENS[:1], np.array([0]), causal(1))
