"""Which tables the pages of docs/results/ hold: for each result file, its rows and its columns."""

from benchmarks.page_columns import (
    CERTIFIED,
    FIGURES,
    JUDGED,
    LIVE,
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
    WRONG_VERIFIERS,
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
    "simulator": "The simulator against the engine",
    "exactness": "Verifiers judged by `underpaint certify`",
    "rules": "The rules of 2025 and 2026 against the best lossless rule",
    "costs": "LlamaGen-B at full size",
    "engines": "TensorRT engines: size and build time",
    "live": "Live models, family by family",
    "server": "`underpaint serve` under load",
    "device": "The whole cycle on a GPU, predicted",
    TEXTURED_PAGE: "TexturedScenes: models in the papers' regime",
}
README_FILE = "textured-compare-128-t1.json"
"""The record of the README's table."""


def _compared(file: str, heading: str, more: str = "") -> Section:
    words = "Where guidance is not 1, every pass has two rows. Measures of quality are paired with AR's."
    return Section(TEXTURED_PAGE, heading, f"textured-{file}.json", JUDGED, f"{words} {more}".strip())


def _textured(file: str, heading: str, columns: tuple[Column, ...], words: str, rows: Rows = all_rows) -> Section:
    return Section(TEXTURED_PAGE, heading, f"textured-{file}.json", columns, words, rows)


SECTIONS: tuple[Section, ...] = (
    Section(
        "roofline",
        "Synthetic models on three machines",
        "roofline-study.json",
        STUDY,
        "The GPUs are priced by an earlier latency model: the larger of a pass's bytes and its launches.",
    ),
    Section(
        "simulator",
        "Tree methods, on earlier models",
        "predict-128-t1.json",
        PREDICTED,
        "A trace of other prompts predicts a comparison.",
    ),
    Section("simulator", "MuLo-SD and ZipAR, on earlier models", "predict-mulo-t1.json", PREDICTED),
    Section(
        "simulator",
        "Every method on an A100 and an H200",
        "simulated-methods.json",
        SIMULATED,
        "Speed-up in modelled time at the size of LlamaGen-XL, temperature 1, on synthetic models of 16 x 16 cells. "
        "The tuned settings were chosen on two cores of a processor, where nodes are dear. A synthetic model has a few "
        "hundred contexts, so what the target said before comes again sooner than in a picture. Windows that look it "
        "up (`jacobi-lookup`, `roofline`) gain more from that here than they would on photographs. LANTERN in the long "
        "windows of `roofline+lantern` keeps nearly everything on flat distributions: read it beside its bias, which "
        "no bound holds.",
        simulated_by_method,
    ),
    Section(
        "simulator",
        "How fast it draws, beside an older version",
        "simulator-scale.json",
        SCALE,
        "On the synthetic model `field`, 16 x 16 cells. Both versions draw the same images. The first rows are "
        "processor time of one process. The last two are whole commands on two processes, by the clock. The older "
        "version, `git show 73500d1d`, keeps the counts of every image, and shares no simulation between processes. "
        "A million images are beyond it.",
        scaled,
    ),
    Section(
        "engines",
        "The shipped models, beside an older version",
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
        "Wrong ones are the gallery's, on every kind of trees. Right ones are ours and public samplers written anew.",
        lambda result: [result],
    ),
    Section("exactness", "Wrong verifiers, one by one", "certify.json", WRONG_VERIFIERS),
    Section(
        "rules",
        "Tokens kept of one draft, exactly",
        "recent-rules.json",
        RECENT,
        "Two tokens, by enumeration. A linear programme over all lossless rules gives the most that one keeps. Block "
        "verification reaches it on every chain. A rule that keeps more is biased; its total variation is of whole "
        "images. `toy` is the case of block verification's paper, `random` has a distribution for every prefix.",
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
        "Tiny models beside `model.generate`, and one layer at full width",
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
        "A prediction by the kernels and the cost model of commit b3a14e5e, written before a GPU was seen: 2 "
        "microseconds for each node of a cycle's graph, and its bytes at nominal bandwidth. Compute and what kernels "
        "waste are left out, so a GPU is slower; the command counts issued instructions by now. Images: 1; ADT-Tree's "
        "envelope has eight levels and OPT-Tree's ten of 50 nodes, whether an image uses them or not. Each choice of "
        "`roofline` is a program, behind which the host waits once; MuLo-SD's draft and repair run many times, its "
        "verification once a picture. A commit is counted as if every draft were accepted: of `roofline`'s window that "
        "is 0.02 ms on an A100.",
    ),
    *(
        section
        for side in (64, 128)
        for section in (
            _textured(
                f"premises-{side}",
                f"What the papers take for granted, {side} px",
                PREMISES,
                "After guidance; where it is not 1, a pass has two rows. What each figure is: "
                "docs/how-to/check-premises.md.",
            ),
            _textured(
                f"premises-{side}",
                f"What a target pass costs, {side} px",
                PASSES,
                "In plain passes, inside decoding cycles, by the nodes of the pass: what parallel verification costs.",
                rows=lambda one: one["passes"],
            ),
        )
    ),
    _compared(
        "quality-128-t1",
        "Chosen methods on more prompts, 128 px, temperature 1",
        "`zipar` over two cells takes three quarters of the passes that `mulo-islands` does in both resolutions "
        "together, whose rows lie two cells behind in repair. The low target of `mulo-islands` multiplies in 8 bits, "
        "which the paper does not do.",
    ),
    _compared("quality-128-t0", "Chosen methods on more prompts, 128 px, temperature 0"),
    _compared(
        "quality-islands-128-t1",
        "Islands on more prompts, 128 px, temperature 1",
        "As they are tuned: in repair a row of an island lies one cell behind the row above it. The low target "
        "multiplies in 8 bits.",
    ),
    *(_compared(f"compare-128-t{t}", f"Methods beside each other, 128 px, temperature {t}") for t in (1, 0)),
    _compared("compare-64-t1", "Methods beside each other, 64 px, temperature 1"),
    *(
        _textured(f"paired-{file}128-t{t}", f"{heading}, 128 px, temperature {t}", PAIRED, words)
        for file, heading, words in (
            (
                "",
                "`lantern` beside each of the others",
                "Picture by picture, of the same comparison: how many times as fast as the other `lantern` is.",
            ),
            (
                "roofline-",
                "`roofline` and its own window",
                "Picture by picture: how many times as fast as the other `roofline` is.",
            ),
            (
                "paper-",
                "`eagle2` beside each of the others, the papers' own settings",
                "Picture by picture: how many times as fast the other `eagle2` is, and how much deeper its drafts are.",
            ),
        )
        for t in (1, 0)
    ),
    _textured(
        "ties-128-t0",
        "Where lossless methods part from plain decoding, 128 px, temperature 0",
        TIES,
        "A larger pass rounds otherwise, so a method can choose another token where two tie: their log-probabilities "
        "differ by no more than rounding makes, in passes of 1, 3 and 8 positions.",
    ),
    *(_compared(f"compare-paper-128-t{t}", f"The papers' own settings, 128 px, temperature {t}") for t in (1, 0)),
    _compared(
        "adt-control-128-t1",
        "ADT-Tree and its control at the papers' own settings, 128 px, temperature 1",
        "`adt-control-tree` drafts EAGLE-2's trees of ADT-Tree's mean depth and number of nodes, and never adapts.",
    ),
    _compared(
        "pooled-codes-128-t0",
        "ADT-Tree with LANTERN by how many near codes it pools, 128 px, temperature 0",
        "On other prompts: the more codes, the faster. `adt+lantern++` pools 10, in "
        "proportion to the token's own probability.",
    ),
    _compared(
        "pooled-30-128-t0",
        "ADT-Tree with LANTERN that pools 30 near codes, on more prompts, 128 px, temperature 0",
        "The prompts of `textured-quality-128-t0.json`, where it pools 250.",
    ),
    _textured(
        "mulo-ablation",
        "What each part of MuLo-SD adds, 128 px, temperature 1",
        JUDGED,
        "Serial repair of the whole draft in row fronts of two cells, and what is varied. In the variants of local and "
        "of raster rejection two low rows are drafted a cycle. *Matched*: the threshold at which as much of the draft "
        "is kept as by `local + expansion` or `pooled`. Differences pair by pair: [claims.md](claims.md).",
    ),
    _textured(
        "mulo-parts",
        "What row fronts add to MuLo-SD, and what pictures do between the resolutions, 128 px, temperature 1",
        JUDGED,
        "Serial repair of the whole draft in raster order, and what is varied. `sampler bicubic` decodes, resizes and "
        "encodes pictures; `sampler latent` is the network on codes that ships.",
    ),
    _textured(
        "mulo-losses",
        "What the losses of MuLo-SD's samplers add, 128 px, temperature 1",
        UNTIMED,
        "Other work ran beside it, so no times are shown. `latent` ships: tokens and pictures on the way up, tokens on "
        "the way down. `latent-ce` knows tokens alone; `latent-gan` adds a critic on the way up, `latent-down-pixel` "
        "pictures on the way down, `latent-down-gan` both there. Where the way down counts, two low rows are drafted a "
        "cycle, as in `local + expansion`.",
    ),
    _compared(
        "pair-128-t1",
        "Guidance by a true pair of rows, 128 px, temperature 1",
        "The target is the one before guidance was baked in. The drafter learnt from the one after, of one row. "
        "`mulo-islands` drafted in float32 and kept more then.",
    ),
    _compared(
        "eight-bits-128-t1",
        "Targets that multiply in 8 bits, 128 px, temperature 1",
        "Speed-ups are over plain decoding by these targets; the seconds of a picture compare them with those in "
        "float32. *Lossless* is said of the rule: products in 8 bits depend on the size of a pass.",
    ),
)
