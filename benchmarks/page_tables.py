"""Which tables the pages of docs/results/ hold: for each result file, its rows and its columns."""

from benchmarks.page_cells import Section, plain, word
from benchmarks.page_columns import (
    BUDGET,
    CERTIFIED,
    CHAINS,
    DISTURBED,
    DUPLICATES,
    FIGURES,
    HOST_SHARE,
    PREDICTED,
    PROGRAM,
    SIMULATED,
    SPEED,
    STUDY,
    figures,
    simulated_by_method,
)
from benchmarks.textured_tables import TEXTURED_SECTIONS

SIMULATED_WORDS = """Speed-up in modelled time at the size of LlamaGen-XL, temperature 1, on synthetic models of
16 x 16 cells. "tuned" was chosen on two cores of a processor, where nodes are dear. A synthetic model has a few hundred
contexts, so what the target said before comes again sooner than in a picture: windows that look it up (`jacobi-lookup`,
`roofline`) have more of it here than they would have on photographs. LANTERN in the long windows of `roofline+lantern`
keeps nearly everything on flat distributions: read it beside its bias, which no bound holds."""


SECTIONS: tuple[Section, ...] = (
    Section(
        "premises",
        "Near-duplicate codes of the textured scenes' tokenizer",
        "near-duplicates-128.json",
        DUPLICATES,
        "Every code of 64 fresh scenes of 128 px is replaced by its k-th nearest, and the pictures are compared. With "
        "their own codes the scenes come back at 23.1 dB.",
        lambda result: result["replacements"],
    ),
    Section("roofline", "Synthetic models on three machines", "roofline-study.json", STUDY),
    Section("roofline", "Chains in one call, on traces of earlier models", "chain-study-traces.json", CHAINS),
    Section("roofline", "Chains in one call, on synthetic models", "chain-study-models.json", CHAINS),
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
        SIMULATED_WORDS,
        simulated_by_method,
    ),
    Section(
        "simulator",
        "Lockstep against the loop",
        "simulate.json",
        (
            ("policy", word("policy")),
            ("rule", word("rule")),
            ("lockstep, ms an image", plain("lockstep_ms", ".3f")),
            ("loop, ms an image", plain("loop_ms", ".2f")),
            ("times faster", plain("times_faster", ".0f")),
        ),
    ),
    Section(
        "relaxed",
        "`neighbour_budget` against the best mixture of a rival's settings at equal total variation",
        "relaxed-budget.json",
        BUDGET,
        "Exact, by enumeration, so on any machine. *More kept*: the probability that one of the siblings is kept, less "
        "the rival's.",
    ),
    Section(
        "exactness",
        "Verifiers judged by `underpaint certify`",
        "certify.json",
        CERTIFIED,
        "Wrong ones are the gallery's, on every kind of trees. Right ones are ours and public samplers written anew.",
        lambda result: [result],
    ),
    Section(
        "exactness",
        "Wrong verifiers, one by one",
        "certify.json",
        (
            ("verifier", word("verifier")),
            ("siblings", word("drawn")),
            ("seconds", plain("seconds", ".1f")),
            ("recognised as", lambda row: ", ".join(row["looks_like"])),
        ),
    ),
    Section(
        "exactness",
        "An evaluation that loses a worker half-way",
        "evaluate.json",
        DISTURBED,
        "2,000 pictures on two Ray workers, undisturbed, and with one worker killed after 1,000. Every figure that no "
        "clock takes is the same.",
    ),
    Section(
        "costs",
        "A verdict on a tree",
        "decide.json",
        FIGURES,
        rows=figures("nodes", "vocab_size", "verdict_ms", "speedup", "speedup_arrays", "base_us", "visited_us"),
    ),
    Section(
        "costs",
        "TreeBuilder a tree on the host",
        "grow.json",
        FIGURES,
        rows=figures("nodes", "vocab_size", "grow_us", "direct_sorted_us", "direct_partitioned_us"),
    ),
    Section(
        "costs",
        "LlamaGen-B at full size",
        "llamagen-b.json",
        FIGURES,
        rows=figures(
            "parameters", "export_seconds", "peak_memory_bytes", "picture_seconds", "reading_ms", "token_over_reading"
        ),
    ),
    Section(
        "costs",
        "The host's share of a cycle at LlamaGen-B's shape, random weights",
        "host-share.json",
        HOST_SHARE,
        rows=lambda result: [{"loop": name, **parts} for name, parts in result["loops"].items()],
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
        "A prediction, written before a GPU was seen: 2 microseconds for each node of a cycle's graph, and its bytes "
        "at nominal bandwidth. Compute and what kernels waste are left out, so a GPU is slower. Images: 1; ADT-Tree's "
        "envelope has eight levels and OPT-Tree's ten of 50 nodes, whether an image uses them or not. Each choice of "
        "`roofline` is a program, behind which the host waits once; MuLo-SD's draft and repair run many times, its "
        "verification once a picture. A commit is counted as if every draft were accepted: of `roofline`'s window that "
        "is 0.02 ms on an A100.",
    ),
    Section(
        "costs",
        "A pass after a pause",
        "pauses.json",
        (("pause, ms", lambda row: str(row["pause"])), ("passes of 1, 2, ... positions, ms", word("passes"))),
        rows=lambda result: [
            {"pause": pause, "passes": ", ".join(f"{count}: {ms:.3f}" for count, ms in found.items())}
            for pause, found in result["passes_ms"]
        ],
    ),
    *TEXTURED_SECTIONS,
)
