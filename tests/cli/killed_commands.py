"""A process that forks a child for every command and kills it at the named call: `python -m tests.cli.killed_commands`.

It imports what commands need once, before any thread is there, so that a kill costs no more than the command itself.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 600
"""No command here takes so long on the slowest machine."""


class Moment(NamedTuple):
    """The call, counted from 1, before which a process is killed: `replace`, `link` or `fsync` of `os`."""

    call: str
    turn: int = 1


class Ended(NamedTuple):
    """code: below 0 where a signal ended it. err: standard error."""

    code: int
    err: str


class Commands:
    """The other end of this module's process."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.killed_commands"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, line: str, folder: Path, prepared: str = "", killed_at: Moment | None = None) -> Ended:
        """`underpaint LINE` in `folder`, after the preparation of that name, killed or to its end."""
        request = {"line": line, "folder": str(folder), "prepared": prepared, "killed_at": killed_at}
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(request) + "\n")
        self._child.stdin.flush()
        return Ended(*json.loads(self._child.stdout.readline()))

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(SECONDS)
        assert self._child.stdout is not None
        self._child.stdout.close()


Patch = tuple[Any, str, Any]
"""An object, the name of what is replaced in it, and by what."""


def _synthetic() -> Iterator[Patch]:
    """No engine: every command opens a synthetic pipeline."""
    from tests.cli.synthetic_pipeline import SyntheticPipeline
    from underpaint.runtime.evaluation import picture_judge
    from underpaint.runtime.pipeline import Pipeline

    yield Pipeline, "open", staticmethod(lambda *_, **__: SyntheticPipeline())
    yield picture_judge, "open_judge", lambda folder, index, entry, context: entry


def _known_curve() -> Iterator[Patch]:
    """Nothing is measured: the curve is a short one."""
    from underpaint.runtime.costs import machine_curve

    curve = {"format": 3, "verify_ms": [[1, 2.0], [8, 5.0]], "draft_ms": [[1, 0.5], [8, 0.75]], "machine": {}}
    yield machine_curve, "_measure", lambda *_: curve


def _no_tensorrt() -> Iterator[Patch]:
    """No builder: an engine is a few bytes."""
    from underpaint.export.tensorrt_build import EngineBuilder
    from underpaint.runtime.engines import tensorrt_files, tensorrt_runtime

    yield tensorrt_files, "backend_module", lambda backend: SimpleNamespace(__version__="0.0")
    yield EngineBuilder, "build", lambda *_: b"an engine" * 100
    yield tensorrt_runtime, "gpu_name", lambda: "a stand-in"


def _tiny_recipes() -> Iterator[Patch]:
    """No art, and models of a few hundred weights: every recipe has two steps of seconds together."""
    from dataclasses import replace

    from tests.training.sprites import made_up_sprites
    from tests.training.test_textured_world import SETTINGS
    from underpaint.models import checkpoints
    from underpaint.models.judge import JudgeConfig
    from underpaint.models.vq import VQModel
    from underpaint.training import drawn, judge, pictures, textured_world

    yield pictures, "load_sprites", lambda *_: made_up_sprites()
    yield textured_world, "WorldSettings", lambda sides: replace(SETTINGS, sides=sides)
    yield drawn, "CHUNK", 4
    yield checkpoints, "load_vq", lambda path: VQModel(SETTINGS.vq).eval()
    yield judge, "DEFAULT_LOOP", replace(judge.DEFAULT_LOOP, checkpoint_seconds=0.0)
    yield judge, "JudgeConfig", lambda: JudgeConfig((4, 4, 4, 4), 8)
    yield judge, "JudgeSettings", lambda: SETTINGS.judging


PREPARED: dict[str, Callable[[], Iterator[Patch]]] = {
    "": lambda: iter(()),
    "synthetic": _synthetic,
    "known_curve": _known_curve,
    "no_tensorrt": _no_tensorrt,
    "tiny_recipes": _tiny_recipes,
}
"""What stands in for what a test has not: engines, networks, a GPU."""


def _kill_before(moment: Moment) -> None:
    called, calls_left = getattr(os, moment.call), [moment.turn]

    def counted(*arguments: Any, **named: Any) -> Any:
        calls_left[0] -= 1
        if not calls_left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return called(*arguments, **named)

    setattr(os, moment.call, counted)


def _command(line: str, folder: str, prepared: str, killed_at: list[Any] | None, errors: int) -> int:
    from underpaint.cli.app import main

    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
    null = os.open(os.devnull, os.O_RDWR)
    for place, at in ((null, 0), (null, 1), (errors, 2)):
        os.dup2(place, at)
    sys.argv = ["underpaint", *shlex.split(line)]
    try:
        for place, name, stand_in in PREPARED[prepared]():
            setattr(place, name, stand_in)
        if killed_at is not None:
            _kill_before(Moment(*killed_at))
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


@cache
def _draw_what_recipes_share() -> None:
    """Sprites and tiles of textures, which every training would draw for itself."""
    from tests.training.sprites import made_up_sprites
    from underpaint.training.data import textures

    made_up_sprites()
    for kind in textures.KINDS:
        for number in range(textures.TILES):
            textures.window(kind, number, 0, 0, 0, 64, 64)


def _serve() -> None:
    import matplotlib.pyplot  # noqa: F401
    import torch._dynamo  # noqa: F401

    import underpaint.cli.train.commands
    import underpaint.export.checkpoint
    import underpaint.runtime.pipeline  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        if request["prepared"] == "tiny_recipes":
            _draw_what_recipes_share()
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(SECONDS)  # ends a child that hangs, so that its test fails
            os.close(reading)
            os._exit(_command(**request, errors=writing))
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            error_text = stream.read().decode(errors="replace")
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), error_text]), flush=True)


if __name__ == "__main__":
    _serve()
