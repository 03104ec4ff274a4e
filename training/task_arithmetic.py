"""Task arithmetic: what guidance changed in one target is added to another.

What a training changed in a model's weights is a direction that other weights of that model can be moved along
(arXiv 2212.04089). Where a target has learnt on since guidance was baked into it, its guided successor need not begin
at the target itself.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from underpaint.models.checkpoints import read, story, target_of
from underpaint.models.config import plain
from underpaint.training.drawn import fingerprint
from underpaint.training.loop import CHECKPOINT, save_atomically

SHARED = frozenset({"decoder.codes.weight", "decoder.head.weight"})
"""What a guided target keeps of its target: a drafter is loaded with both."""


def add_guidance(out: Path, target: Path, before: Path, guided: Path) -> Path:
    """Write `out/checkpoint.pt`, `target` plus `guided` less `before`, for `train_guided` to go on from; return it.

    Codes and head stay those of `target`. Like weights that are restored it has no optimiser, and no steps.

    Args:
        out: folder of the run.
        target: checkpoint of `train_target`.
        before: checkpoint of `train_target` that `guided` began from.
        guided: checkpoint of `train_guided`.

    Raises:
        FileNotFoundError: where one of the three is absent.
        ValueError: where one is no target, their widths or grids differ, `guided` has no guidance or another has.
        FileExistsError: where `out` holds a checkpoint, which is left as it is.
    """
    path = out / CHECKPOINT
    if path.exists():
        raise FileExistsError(f"{path} is there already: nothing is written over it; choose another --out")
    moved, old, new = (read(one, "target") for one in (target, before, guided))
    guidance = new["config"].get("guidance")
    if guidance is None:
        raise ValueError(f"{guided}: expected a target that guidance was baked into, got one without")
    for one, saved in ((target, moved), (before, old)):
        if "guidance" in saved["config"]:
            raise ValueError(f"{one}: expected a target before guidance was baked in, got one with it")
        if _sizes(saved["config"]) != _sizes(new["config"]):
            raise ValueError(f"{one}: expected a target of the widths and grids of {guided}, got one of others")
    weights = {
        name: value if name in SHARED else value + (new["model"][name] - old["model"][name])
        for name, value in moved["model"].items()
    }
    how = {"before": fingerprint(target_of(old, before)), "guided": fingerprint(target_of(new, guided))}
    run = {"first_step": 0, "how": {"task_arithmetic": how}, "began_from": story(moved)}
    saved = {"config": {**moved["config"], "guidance": guidance}, "model": weights, "raw": weights, "step": 0}
    save_atomically({**saved, "elapsed_seconds": 0.0, "validation": {}, "runs": [run]}, path)
    return path


def _sizes(config: Mapping[str, Any]) -> Any:
    return plain({name: value for name, value in config.items() if name != "guidance"})
