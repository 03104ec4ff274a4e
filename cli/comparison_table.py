"""The table of a comparison, with one row per method."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from underpaint.cli.option_values import describe_sampling
from underpaint.cli.tables import Column, ResultTable, figure, interval, show, with_interval
from underpaint.cli.terminal import Format, note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from underpaint.artifacts.cost_curve import CostCurveFile
    from underpaint.runtime.evaluation.picture_judge import PictureJudge
    from underpaint.runtime.evaluation.plan import ModelPlan
    from underpaint.runtime.evaluation.report_row import ReportRow

_MS_PARTS: Final = ("target_ms_per_cycle", "drafter_ms_per_cycle", "host_ms_per_cycle")
_DEVICE_MS_PARTS: Final = ("device_ms_per_cycle", "host_ms_per_cycle")


def title_of(model: "ModelPlan") -> str:
    """Return a table's title: picture size, sampling, and the preset of the methods' settings."""
    sampling = describe_sampling(model.comparison.sampling, model.pipeline.tables.vocab_size)
    return f"{model.pipeline.title()}, {sampling}, {model.comparison.preset} settings"


def table_of(
    reported: "Sequence[ReportRow]", judge: "PictureJudge | None", title: str, *, on_device: bool = False
) -> ResultTable:
    """Return a table with one row per method; see `print_rows`."""
    return ResultTable(title, _columns(judge is not None, reported, on_device), [asdict(row) for row in reported])


def note_judge(judge: "PictureJudge | None", form: Format) -> None:
    """Print the judge's own accuracy, if there is a judge and it is known."""
    from underpaint.zoo.textured_prompts import MAIN_ACCURACY

    accuracy = None if judge is None else judge.reference.accuracy.get(MAIN_ACCURACY)
    if accuracy is not None:
        what = MAIN_ACCURACY.replace("_", " ")
        note(f"The judge itself reads {accuracy:.3f} of real scenes right ({what}).", form)


def print_rows(
    reported: "Sequence[ReportRow]",
    judge: "PictureJudge | None",
    title: str,
    curve: "CostCurveFile | None" = None,
    form: Format = Format.table,
    *,
    on_device: bool = False,
) -> None:
    """Print one row per method, the judge's own accuracy, and the knee of the cost curve if it is known.

    Args:
        reported: The rows.
        judge: The judge of the pictures; None without one.
        title: Title of the table.
        curve: The cost curve of this machine; None if it is not known.
        form: Format of the output.
        on_device: Whether one program ran all models; time is then split into device and host.
    """
    from underpaint.runtime.evaluation.comparison import BASELINE

    show([table_of(reported, judge, title, on_device=on_device)], form)
    if any(row.speedup_over_eager is not None for row in reported):
        note("ar is plain autoregression as one program; ar-eager is the loop that papers time.", form)
    note_judge(judge, form)
    if curve is not None:
        note(f"On this machine {curve.knee.describe()} (`underpaint costs`, curve {curve.fingerprint[:12]}).", form)
        plain = next((row.target_ms_per_cycle for row in reported if row.method == BASELINE), None)
        warning = None if plain is None else curve.outdated(plain)
        if warning is not None:
            note(f"Beware: {warning}.", form)


def _columns(judged: bool, reported: "Sequence[ReportRow]", on_device: bool) -> list[Column]:
    """Return the columns of a comparison. JSON and CSV give intervals and parts as separate values."""
    eager = any(row.speedup_over_eager is not None for row in reported)
    quality = (
        figure("prompt_accuracy", "prompt\naccuracy", ".3f"),
        with_interval("accuracy_over_ar", "minus AR's\n(95 %)", "+.3f"),
        with_interval("attribute_log_probability_over_ar", "judge's log-probability\nminus AR's (95 %)", "+.3f"),
        Column("frechet", "Fréchet\n(floor)", _frechet, right=True, parts=("frechet_distance", "frechet_floor")),
    )
    times = (
        figure("overhead_share", "over-\nhead", ".0%"),
        Column("ms_per_cycle", "ms a cycle: target\n+ drafter + host", _sum, right=True, parts=_MS_PARTS),
    )
    if on_device:
        times = (
            Column("ms_per_cycle", "ms a cycle:\ndevice + host", _sum, right=True, parts=_DEVICE_MS_PARTS),
            Column("peak_bytes", "peak\nMiB", _mebibytes, right=True),
        )
    return [
        Column("method", "method\n"),
        Column("lossless", "loss-\nless", right=True),
        figure("speedup", "speed-\nup", ".2f", "x"),
        interval("speedup", "95 %\ninterval", ".2f"),
        *((figure("speedup_over_eager", "over\nar-eager", ".2f", "x"),) if on_device and eager else ()),
        figure("seconds_per_image", "s per\nimage", ".3f"),
        figure("target_nfe", "target\nNFE", ".1f"),
        figure("drafter_nfe", "drafter\nNFE", ".1f"),
        figure("tokens_per_cycle", "tokens\nper cycle", ".2f"),
        figure("mean_depth", "mean\ndepth", ".2f"),
        figure("mean_nodes", "nodes per\ncycle", ".2f"),
        figure("kept_share", "draft\nkept", ".0%"),
        *times,
        *(quality if judged else ()),
        with_interval("auc", "AUC against\nAR's (95 %)", ".3f"),
        *(
            (with_interval("log_likelihood_over_ar", "log-likelihood\nminus AR's (95 %)", "+.3f"),)
            if any(row.log_likelihood is not None for row in reported)
            else ()
        ),
        figure("identical_share", "same\nas AR", ".1%"),
        *((Column("loop", "loop\n"),) if any(row.loop != "host" for row in reported) else ()),
    ]


def _mebibytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 2**20:.0f}"


def _sum(parts: tuple[float | None, ...]) -> str:
    """Join numbers by plus signs."""
    return " + ".join("-" if part is None else f"{part:.2f}" for part in parts)


def _frechet(parts: tuple[float | None, ...]) -> str:
    """Format the distance and its floor; "-" if the distance does not exceed the floor."""
    from underpaint.runtime.evaluation.report_row import above_floor

    distance, floor = parts
    if not above_floor(distance, floor):
        return "-"
    return f"{distance:.1f} ({floor:.1f})"
