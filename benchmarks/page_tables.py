"""Which tables the pages of docs/results/ hold: for each result file, its rows and its columns."""

from benchmarks.page_columns import (
    CERTIFIED,
    FIGURES,
    JUDGED,
    LIVE,
    LIVE_BATCHES,
    LIVE_DRAFTER,
    PAIRED,
    PASSES,
    PLANS,
    PREDICTED,
    PREMISES,
    PROGRAM,
    RECENT,
    SCALE,
    SERVED,
    SIMULATED,
    SPEED,
    STUDY,
    TIES,
    UNTIMED,
    WAITING,
    Column,
    Rows,
    Section,
    all_rows,
    figures,
    scaled,
    simulated_by_method,
)

TEXTURED_PAGE = "textured"
TITLES = {
    "roofline": "`roofline` in simulation",
    "simulator": "Predictions of the simulator",
    "exactness": "Verifiers judged by `underpaint certify`",
    "rules": "The rules of 2025 and 2026 against the best lossless rule",
    "costs": "LlamaGen-B at full size",
    "engines": "TensorRT engines: size and build time",
    "live": "Live models, family by family",
    "server": "`underpaint serve` under load",
    "device": "The whole cycle on a GPU, predicted",
    TEXTURED_PAGE: "The shipped models, measured",
}
README_FILE = "textured-compare-128-t1.json"
"""The record of the README's table."""


def _compared(file: str, heading: str, more: str = "") -> Section:
    return Section(TEXTURED_PAGE, heading, f"textured-{file}.json", JUDGED, more)


def _textured(file: str, heading: str, columns: tuple[Column, ...], words: str, rows: Rows = all_rows) -> Section:
    return Section(TEXTURED_PAGE, heading, f"textured-{file}.json", columns, words, rows)


SECTIONS: tuple[Section, ...] = (
    Section(
        "roofline",
        "Synthetic models on three machines",
        "roofline-study.json",
        STUDY,
        "Speed-ups over plain decoding. Every rival is tuned on the reported images, and `roofline` keeps its "
        "defaults. *Points only* to *no siblings* leave parts of `roofline` out. `costs128` is a measured curve of two "
        "CPU cores. The GPUs are rooflines.",
    ),
    Section(
        "simulator",
        "Tree methods, on earlier models",
        "predict-128-t1.json",
        PREDICTED,
        "The prediction uses a trace of other prompts. *Error expected by chance* is what other prompts alone would "
        "make.",
    ),
    Section("simulator", "MuLo-SD and ZipAR, on earlier models", "predict-mulo-t1.json", PREDICTED),
    Section(
        "simulator",
        "Every method on an A100 and an H200",
        "simulated-methods.json",
        SIMULATED,
        "Predicted speed-ups at the size of LlamaGen-XL, temperature 1, on synthetic models of 16 x 16 cells. The "
        "settings `tuned` were chosen on two CPU cores, where every drafted node costs time. Synthetic models repeat "
        "their contexts more often than pictures do, so `jacobi-lookup` and `roofline` gain more here than they would "
        "on photographs. `roofline+lantern` accepts nearly every draft on flat distributions, and nothing bounds its "
        "bias there.",
        simulated_by_method,
    ),
    Section(
        "simulator",
        "How fast the simulator runs, against an older version",
        "simulator-scale.json",
        SCALE,
        "The synthetic model `field`, 16 x 16 cells; both versions draw the same images. The first rows are processor "
        "time of one process. The last two are wall-clock times of whole commands on two processes. The older version "
        "(`git show 73500d1d`) runs out of memory at a million images.",
        scaled,
    ),
    Section(
        "engines",
        "The shipped models, before and after",
        "tensorrt-plans.json",
        PLANS,
        "Built by TensorRT for RTX on a machine without a GPU, in float32. Engines hold no weights now: they read them "
        "as inputs. In the older version, `git show c8251d19`, each number of rows has an engine with all the weights, "
        "and its builder refuses the shipped drafter's plain graph. Weights count 4 bytes a number. Seconds are of the "
        "whole commands, on a machine that others used too; `--for-device` builds both decoders.",
    ),
    Section(
        "exactness",
        "All verifiers",
        "certify.json",
        CERTIFIED,
        "The wrong verifiers are those of `certify --gallery`, on every kind of draft tree. The right ones are this "
        "project's rules and reimplemented public samplers.",
        lambda result: [result],
    ),
    Section(
        "rules",
        "Tokens kept of one draft, exactly",
        "recent-rules.json",
        RECENT,
        "Two tokens, by enumeration. A linear programme over all lossless rules gives the most that one keeps. Block "
        "verification reaches it on every chain. A rule that keeps more is biased; its total variation is of whole "
        "images. `toy` is the case of block verification's paper, `random` has a distribution for every prefix.\n\n"
        "All but `traversal` have a batched form, for many images in the simulator, and all but `gbv` have one on the "
        "device. `gbv` orders a whole row of tokens by p / q at every level, and a program on the device holds one "
        "tile of a row. Jacobi windows (`sjd-sv`, `sjd++`) run one image at a time in the simulator: their drafts live "
        "on from pass to pass, with a distribution each.",
    ),
    Section(
        "costs",
        "Export, one picture, and a token",
        "llamagen-b.json",
        FIGURES,
        rows=figures(
            "parameters", "export_seconds", "peak_memory_bytes", "picture_seconds", "reading_ms", "token_over_reading"
        ),
    ),
    Section(
        "server",
        "Five minutes of 64 clients",
        "server.json",
        FIGURES,
        "Pictures of 64 px on loopback. Changed: pictures unlike those drawn alone with the same seed.",
        figures(
            *("clients", "slots", "pictures", "errors", "lost", "changed", "p50_s", "p99_s", "pictures_a_second"),
            *("fewest_a_client", "most_a_client", "tracebacks"),
            part="load",
        ),
    ),
    Section(
        "server",
        "Side by side, and one at a time",
        "server.json",
        SERVED,
        "Pictures side by side gain nothing on a CPU: its cores are busy with one. Without slots: no server.",
        lambda result: [
            {"clients": 1, "slots": 0, **result["turns"]["no_server"]},
            *result["turns"]["rows"],
        ],
    ),
    Section(
        "server",
        "Malformed requests",
        "server.json",
        FIGURES,
        "Made by Hypothesis: documents that break the API's schema, and bodies of any bytes.",
        figures("requests", "not_4xx", "tracebacks", part="malformed"),
    ),
    Section(
        "server",
        "Memory over 2,000 pictures",
        "server.json",
        FIGURES,
        rows=figures("pictures", "first_quarter_mib", "last_mib", "growth_mib_per_1000", part="memory"),
    ),
    Section(
        "server",
        "Clients that leave or do not read",
        "server.json",
        WAITING,
        "How long one more client waits for a picture.",
        lambda result: result["clients"]["rows"],
    ),
    Section(
        "server",
        "A replica is killed",
        "server-replicas.json",
        FIGURES,
        "Two replicas under Ray Serve. One gets SIGKILL once a third of the pictures is drawn.",
        figures(
            *("requests", "pictures", "replicas", "calls_made_again", "lost_requests", "requests_with_other_events"),
            *("events", "seconds"),
            part="replica_kill",
        ),
    ),
    Section(
        "live",
        "Tiny models against `model.generate`, and one layer at full width",
        "live-families.json",
        LIVE,
        "Equal: methods that give the tokens of `model.generate` at temperature 0 on random weights, of all that were "
        "tried. Passes and times are of one picture after brief training on pictures whose lines are of one code, so "
        "drafts are kept far more often than on real models. eagle2's drafter was trained as briefly. "
        "A layer is of the default width of the family's configuration, in float32.",
    ),
    Section(
        "live",
        "A drafter trained for a larger live target",
        "live-drafter.json",
        LIVE_DRAFTER,
        "An Emu3 of ten layers, 512 wide, learnt pictures whose lines are of one code, and a drafter learnt from "
        "what it draws. Pictures under guidance at temperature 1, on one thread. Intervals are bootstraps over "
        "pictures.",
    ),
    Section(
        "live",
        "Batches and compiled passes of a larger live target",
        "live-batches.json",
        LIVE_BATCHES,
        "The same Emu3 of ten layers, 512 wide, on pictures of 4 x 12 cells, under guidance at temperature 1, on one "
        "thread. Seven rounds drew the same eight pictures by every variant, each in an order of its own. Other "
        "programs ran on the machine, so speed-ups are of the processor's seconds: medians over rounds, and "
        "bootstraps over rounds. Compiled passes of `jacobi-lookup` are padded to 8, 16 or 32 positions, each of which "
        "costs time on a CPU.",
    ),
    Section(
        "device",
        "The papers' settings on earlier models, temperature 1",
        "compare-paper-128-t1.json",
        SPEED,
        "`python -m benchmarks.device` replays the acceptance of these rows.",
    ),
    Section(
        "device",
        "Cycles on the device, predicted",
        "device-predictions.json",
        PROGRAM,
        "A prediction, made before a GPU was seen. Each node of a cycle's graph takes 2.75 microseconds for its "
        "launch. On top comes the longer of two: its bytes at 77 % of nominal bandwidth, or the instructions "
        "(slots) that its machine code issues. PyTorch's products count by bytes alone. Waiting for memory and "
        "barriers are left out, so a GPU is slower. Images: 1, half of the picture cached.\n\n"
        "Every branch counts as taken, and every loop as long as its source says. So a walk counts two tried "
        "children for each node of an accepted path, and Traversal's counts every node twice. Most trees take "
        "more than 0.1 ms on LlamaGen-XL for their launches and the distributions of 60 nodes. Kernels that read "
        "whole rows of the vocabulary again and again take longer: the walks of GSD, Traversal and coupled "
        "windows, those that `roofline` draws, OPT-Tree's candidates, EAGLE-1's draws and the lookup's table. "
        "ADT-Tree has at most eight levels here and OPT-Tree ten of 50 nodes, and all of them run. Each choice of "
        "`roofline` is a program, after which the host waits once. MuLo-SD's draft and repair run many times, its "
        "verification once a picture.",
    ),
    *(
        section
        for side in (64, 128)
        for section in (
            _textured(
                f"premises-{side}",
                f"The papers' premises, {side} px",
                PREMISES,
                "[Check the papers' premises](../how-to/check-premises.md) defines the figures.",
            ),
            _textured(
                f"premises-{side}",
                f"What a target pass costs, {side} px",
                PASSES,
                "Time of a target pass over so many nodes, as a multiple of a pass over one. Measured while decoding.",
                rows=lambda one: one["passes"],
            ),
        )
    ),
    _compared(
        "quality-128-t1",
        "Chosen methods on more prompts, 128 px, temperature 1",
        "Here `zipar` and the repair of `mulo-islands` use windows of two cells. The low-resolution target of "
        "`mulo-islands` multiplies in 8 bits, unlike the paper's.",
    ),
    _compared("quality-128-t0", "Chosen methods on more prompts, 128 px, temperature 0"),
    _compared(
        "quality-islands-128-t1",
        "`mulo-islands` on more prompts, 128 px, temperature 1",
        "Tuned settings: windows of one cell in repair, and a low-resolution target that multiplies in 8 bits.",
    ),
    *(_compared(f"compare-128-t{t}", f"Methods compared, 128 px, temperature {t}") for t in (1, 0)),
    _compared("compare-64-t1", "Methods compared, 64 px, temperature 1"),
    *(
        _textured(f"paired-{file}128-t{t}", f"{heading}, 128 px, temperature {t}", PAIRED, words)
        for file, heading, words in (
            (
                "",
                "`lantern` against each other method",
                "How many times as fast `lantern` is as the method of the row, picture by picture.",
            ),
            (
                "roofline-",
                "`roofline` against `jacobi-lookup`",
                "How many times as fast `roofline` is as the method of the row, picture by picture.",
            ),
            (
                "paper-",
                "`eagle2` against each other method, the papers' own settings",
                "How many times as fast `eagle2` is as the method of the row, picture by picture, and how many levels "
                "deeper it drafts.",
            ),
        )
        for t in (1, 0)
    ),
    _textured(
        "ties-128-t0",
        "Where lossless methods differ from plain decoding, 128 px, temperature 0",
        TIES,
        "Passes of different sizes round differently, so a method may choose another token where two tie. A tie is a "
        "difference in log-probability no larger than that rounding, measured in passes of 1, 3 and 8 positions.",
    ),
    *(_compared(f"compare-paper-128-t{t}", f"The papers' own settings, 128 px, temperature {t}") for t in (1, 0)),
    _compared(
        "adt-control-128-t1",
        "ADT-Tree and its control at the papers' own settings, 128 px, temperature 1",
        "`adt-control-tree` drafts EAGLE-2's trees of ADT-Tree's mean depth and number of nodes, and never adapts.",
    ),
    _compared(
        "pooled-codes-128-t0",
        "ADT-Tree with LANTERN by the number of pooled codes, 128 px, temperature 0",
        "`adt+lantern++` pools 10 codes, with a bound in proportion to the token's own probability.",
    ),
    _compared(
        "pooled-30-128-t0",
        "ADT-Tree with LANTERN that pools 30 near codes, on more prompts, 128 px, temperature 0",
        "The same prompts as in `textured-quality-128-t0.json`, where 250 codes are pooled.",
    ),
    _textured(
        "mulo-ablation",
        "What each part of MuLo-SD adds, 128 px, temperature 1",
        JUDGED,
        "Each row changes one thing of serial repair in row fronts of two cells. Variants of local and raster "
        "rejection draft two low-resolution rows per cycle. *Matched* variants have the threshold that keeps as much "
        "of the draft as `local + expansion` or `pooled`. Paired differences: [claims](claims.md).",
    ),
    _textured(
        "mulo-parts",
        "What row fronts and the resampler add to MuLo-SD, 128 px, temperature 1",
        JUDGED,
        "Each row changes one thing of serial repair in raster order. `sampler bicubic` decodes, resizes and encodes "
        "pictures; `sampler latent` is the shipped network on codes.",
    ),
    _textured(
        "mulo-losses",
        "What the losses of MuLo-SD's samplers add, 128 px, temperature 1",
        UNTIMED,
        "The machine was busy, so no times are shown. [Samplers of other losses]"
        "(../how-to/train.md#samplers-of-other-losses) says what each sampler learns from. Variants of the "
        "down-sampler draft two low-resolution rows per cycle, as `local + expansion` does.",
    ),
    _compared(
        "pair-128-t1",
        "Classifier-free guidance with two rows, 128 px, temperature 1",
        "The target before guidance was distilled into one row, so every pass has two rows. The drafter was trained on "
        "the distilled target. `mulo-islands` drafted in float32.",
    ),
    _compared(
        "eight-bits-128-t1",
        "Targets that multiply in 8 bits, 128 px, temperature 1",
        "Speed-ups are over plain decoding with the same 8-bit targets. *Lossless* describes the rule: products in 8 "
        "bits depend on the size of a pass, so tokens may differ.",
    ),
)
