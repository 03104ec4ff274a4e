"""How far the training of the models that draw TexturedScenes came, by what was recorded of them."""

import math

from benchmarks.textured_bars import LEAST_ACCURACY, QUALITY, TRAINED, read_right
from benchmarks.verdicts import NoFigureError, Records


def _reconstructed(records: Records, side: int) -> float | None:
    """Of real scenes that went through the tokenizer, the share that the judge reads right."""
    rows = records[TRAINED]["rows"] if TRAINED in records else ()
    judge = next((row["reached"] for row in rows if row["model"] == "judge"), {})
    found = judge.get(f"reconstructed_{side}_things_and_finishes")
    return None if found is None else float(found)


def how_far(records: Records) -> str:
    """How far the training came, by the models' own figures; empty where nothing is recorded of it."""
    parts: list[str] = []
    if TRAINED in records:
        held = records[TRAINED]
        target = next((row for row in held["rows"] if row["model"].startswith("target")), None)
        if target is not None:
            reached, guided = target["reached"], "validation_kl_128" in target["reached"]
            validated = target["reached_before"] if guided else reached
            cross = ", ".join(
                f"{value:.2f} at {name.removeprefix('validation_ce_')} px"
                for name, value in sorted(validated.items(), key=lambda one: len(one[0]))
                if name.startswith("validation_ce_")
            )
            parts.append(
                f"The target learnt for {target['seconds'] / 3600:.1f} hours in all. Its validation cross-entropy"
                f"{' before guidance was baked in' if guided else ''}, in nats a token, is {cross}; knowing nothing is "
                f"{math.log(held['vocab_size']):.2f}."
            )
    if QUALITY[1] in records:
        parts += _how_well(records, QUALITY[1])
    return " ".join(parts)


def _how_well(records: Records, file: str) -> list[str]:
    """What the judge reads right of plain AR's pictures, and whether that is what was asked."""
    try:
        accuracy = read_right(records).value
    except NoFigureError:
        return []
    real = records[file]["model"].get("judge_accuracy", {}).get("things_and_finishes")
    if real is None:
        return []
    side = records[file]["settings"]["resolution"]
    told = f"their finishes); of the real scenes, {real:.3f}"
    most = _reconstructed(records, side)
    if most is not None:
        told += f"; of those as they come back from the tokenizer, {most:.3f}"
    parts = [f"Of plain AR's pictures of {side} px the judge reads {accuracy:.3f} right (two things and {told}."]
    if accuracy < LEAST_ACCURACY:
        parts.append(
            "**The models are undertrained**: less than the 0.75 that was asked of them. Read every figure below as "
            "one of a model that draws badly."
        )
    return parts
