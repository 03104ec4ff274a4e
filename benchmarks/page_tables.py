"""Which tables the pages of docs/results/ hold: for each result file, its rows and its columns."""

from benchmarks.page_cells import ELSEWHERE, Section, plain, with_half, word
from benchmarks.page_columns import (
    BUDGET,
    CERTIFIED,
    CHAINS,
    CONTROLS,
    DAMAGE,
    DISTURBED,
    DRAWS,
    DUPLICATES,
    FIGURES,
    FRONTIER,
    HOST_SHARE,
    INVARIANCE,
    JUDGED_WINDOWS,
    PAIRED,
    PAIRS,
    PREDICTED,
    PREMISES,
    PROGRAM,
    RANKS,
    SIMULATED,
    SPEED,
    SPREAD,
    STUDY,
    VERIFIED,
    WINDOWS,
    figures,
    simulated_by_method,
)
from benchmarks.textured_tables import TEXTURED_SECTIONS
from underpaint.runtime.evaluation.invariance import summary

OURS = "Picture by picture, on the prompts of the tables above. `jacobi-lookup` and `roofline` are ours."


PUBLISHED = """Settings as the papers or their code give them, `k` scaled to this codebook; `underpaint methods --preset
paper` prints each with its source, and says which are guesses. They were chosen for a GPU, where nodes cost next to
nothing: here a tree of 59 nodes costs several plain passes."""


FRONTIER_WORDS = """A method is dominated where another is faster and no worse; **in bold** where that is beyond the
noise of these pictures. "Bought": the speed-up beyond the fastest lossless method of the run, for each 0.1 of total
variation; where it is negative, bias bought nothing. Total variation, of relaxed rules: of the next token at each
draft's root, for drawn siblings a bound from above; of row fronts: of each cell as it was decided, beside the target in
the finished picture; of MuLo-SD, whose cells a low resolution drafted, there is none. A likelihood above AR's counts as
AR's: such pictures are sharper than the target's own, not better.

![Speed against bias, likelihood and accuracy](frontier.png)"""


SIMULATED_WORDS = """Speed-up in modelled time at the size of LlamaGen-XL, temperature 1, on synthetic models of
16 x 16 cells. "tuned" was chosen on two cores of a processor, where nodes are dear. A synthetic model has a few hundred
contexts, so what the target said before comes again sooner than in a picture: windows that look it up (`jacobi-lookup`,
`roofline`) have more of it here than they would have on photographs. LANTERN in the long windows of `roofline+lantern`
keeps nearly everything on flat distributions: read it beside its bias, which no bound holds."""


SECTIONS: tuple[Section, ...] = (
    Section("comparison", "All methods, temperature 0", "compare-128-t0.json", SPEED),
    Section("comparison", "All methods, temperature 1", "compare-128-t1.json", SPEED),
    Section("comparison", "The papers' own settings, temperature 0", "compare-paper-128-t0.json", SPEED, PUBLISHED),
    Section("comparison", "The papers' own settings, temperature 1", "compare-paper-128-t1.json", SPEED, PUBLISHED),
    Section(
        "premises",
        "EmojiScenes models at the papers' sampling",
        "premises-128.json",
        PREMISES,
        "The papers sample at temperature 1 without top-k. Calm, busy and object are told from the picture alone. What "
        "each figure is: docs/how-to/check-premises.md.",
    ),
    Section(
        "premises",
        "Near-duplicate codes of the textured scenes' tokenizer",
        "near-duplicates-128.json",
        DUPLICATES,
        "Every code of 64 fresh scenes of 128 px is replaced by its k-th nearest, and the pictures are compared. With "
        "their own codes the scenes come back at 23.1 dB.",
        lambda result: result["replacements"],
    ),
    Section("comparison", "`jacobi-lookup` beside each of them, temperature 1", "paired-t1.json", PAIRED, OURS),
    Section("comparison", "`jacobi-lookup` beside each of them, temperature 0", "paired-t0.json", PAIRED, OURS),
    Section(
        "comparison",
        "ADT-Tree beside trees of its mean depth that never adapt",
        "adt-controls.json",
        CONTROLS,
        "64 prompts at each temperature. Depths, nodes and tokens are counts: they are the same on every machine. The "
        "chain has ADT-Tree's node count too. The tree has as many nodes as ADT-Tree may have.",
        lambda result: [
            {"temperature": temperature, **row} for temperature, rows in result["temperatures"].items() for row in rows
        ],
    ),
    Section("comparison", "ADT-Tree with LANTERN on 1,000 prompts, temperature 0", "accuracy-128-t0.json", SPEED),
    Section("comparison", "ADT-Tree with LANTERN on 1,000 prompts, temperature 1", "accuracy-128-t1.json", SPEED),
    Section("comparison", "`roofline` beside ADT-Tree, temperature 0", "roofline-128-t0.json", SPEED),
    Section("comparison", "`roofline` beside ADT-Tree, temperature 1", "roofline-128-t1.json", SPEED),
    Section(
        "quality",
        "How much of a difference in accuracy is AR's own draw",
        "accuracy-draws-t1.json",
        DRAWS,
        "The prompts of the comparison at temperature 1, which compares accuracies with AR's one draw of each. Here "
        "they are compared with the mean of AR's other seeds too.",
    ),
    Section(
        "quality",
        "Known damage: which measure sees it, and with how many pictures",
        "quality-damage.json",
        DAMAGE,
        "Two pictures of AR a prompt, with different noise; in the second, tokens are replaced by near codes. "
        "*Pictures needed* gives a chance of 0.8 that the 95 % interval leaves out no damage; for the classifier it is "
        "the fewest prompts of 25, 50, 100 and 200 from which on its interval does.",
    ),
    Section("mulo-sd", "MuLo-SD at its best measured settings", "mulo-compare-t1-window3.json", SPEED),
    Section("mulo-sd", "What each part adds", "mulo-ablation.json", SPEED, ELSEWHERE),
    Section(
        "mulo-sd",
        "Speed against quality",
        "mulo-frontier.json",
        SPEED,
        "![Speed against quality](mulo-frontier.png)",
    ),
    Section("roofline", "Synthetic models on three machines", "roofline-study.json", STUDY),
    Section("roofline", "Chains in one call, on traces of the EmojiScenes models", "chain-study-traces.json", CHAINS),
    Section("roofline", "Chains in one call, on synthetic models", "chain-study-models.json", CHAINS),
    Section(
        "simulator", "Tree methods", "predict-128-t1.json", PREDICTED, "A trace of other prompts predicts a comparison."
    ),
    Section(
        "simulator",
        "Every method on an A100 and an H200",
        "simulated-methods.json",
        SIMULATED,
        SIMULATED_WORDS,
        simulated_by_method,
    ),
    Section("simulator", "MuLo-SD and ZipAR", "predict-mulo-t1.json", PREDICTED),
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
    Section("exactness", "First tokens and pairs, 600 draws", "pair-statistics-128.json", PAIRS),
    Section("exactness", "First tokens and pairs, 2,400 draws", "pair-statistics-128-long.json", PAIRS),
    Section("exactness", "Block and traversal verification", "verification-128.json", VERIFIED),
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
        "frontier", "Relaxed methods beside lossless ones, temperature 1", "frontier-t1.json", FRONTIER, FRONTIER_WORDS
    ),
    Section("settings", "Lossless Jacobi windows, temperature 1", "jacobi-windows-t1.json", WINDOWS),
    Section("settings", "SJD-PAC, temperature 1", "sjd-pac-windows-t1.json", WINDOWS),
    Section(
        "settings",
        "`jacobi-lookup`, each part off and on, temperature 1",
        "jacobi-lookup-parts-t1.json",
        WINDOWS,
        "With all four off it is SCD with this window, 14.",
    ),
    Section("settings", "`jacobi-lookup`, window and weight, temperature 1", "jacobi-lookup-windows-t1.json", WINDOWS),
    Section(
        "settings",
        "`roofline`, each part off and on, temperature 1",
        "roofline-parts-t1.json",
        WINDOWS,
        "`max_depth=1` leaves trees of likeliest tokens with one level.",
    ),
    Section("settings", "Traversal verification, Sequoia and OPT-Tree, temperature 1", "trees-t1.json", WINDOWS),
    Section("settings", "Sequoia and OPT-Tree, temperature 0", "trees-t0.json", WINDOWS),
    Section("settings", "How often a draft of each rank is kept", "rank-acceptance.json", RANKS),
    Section("settings", "ZipAR's adaptive window and VVS, temperature 1", "relaxed-t1.json", JUDGED_WINDOWS),
    Section("settings", "GSD and PJD, temperature 1", "jacobi-relaxed-t1.json", WINDOWS),
    Section("settings", "ADT-Tree with LANTERN, one setting at a time", "adt-settings-t1.json", SPREAD),
    Section(
        "settings",
        "Samplers between 64 and 128 px",
        "samplers.json",
        (
            ("sampler", word("kind")),
            ("PSNR up, dB", with_half("up_psnr_scene")),
            ("PSNR down, dB", with_half("down_psnr_scene")),
        ),
        ELSEWHERE,
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
    Section(
        "invariance",
        "Every decoder",
        "invariance.json",
        INVARIANCE,
        "The worst of all rows of batches of 1, 2 and 4. chain: positions of one path. beside: one token among others "
        "of its cell that it cannot see. What is compared: docs/how-to/check-invariance.md.",
        lambda result: summary(result["passes"]),
    ),
    *TEXTURED_SECTIONS,
)
