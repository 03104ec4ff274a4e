"""What the certificates found, in words: facts and where they are, for the projects' own trackers."""

from typing import Final, NamedTuple


class Bug(NamedTuple):
    """A reproducible difference from what a verifier is meant to do.

    title: one line. about: what happens. place: file and function. expected: what a lossless verifier does there.
    also: other certificates that show the same.
    """

    title: str
    about: str
    place: str
    expected: str
    also: tuple[str, ...] = ()


BUGS: Final[dict[str, Bug]] = {
    "spec-bench-eagle2": Bug(
        "Spec-Bench: the extra token skips the logit processors after an accepted path",
        "With a logits processor (temperature, top-k, top-p, banned tokens), accepted tokens follow the "
        "processed distribution. When every candidate of the path is accepted, the extra token is drawn from "
        "the unprocessed one. So a token that the processors rule out can be emitted. EAGLE's own repository "
        "applies the processor there.",
        "`model/eagle2/utils.py`, `evaluate_posterior`, the last branch, where `sample_p` is made from "
        "`logits[best_candidate, accept_length - 1]`; `model/eagle3/utils.py` and "
        "`model/samd/tree_model/eagle2/utils.py` have the same branch",
        "The row goes through `logits_processor` before the softmax, as the rows of the accept tests do.",
        ("spec-bench-eagle3", "spec-bench-samd"),
    ),
    "vllm-ascend-block": Bug(
        "vllm-ascend: block verification compares products of uniforms",
        "Block verification (off by default; from three drafted tokens on) accepts the longest prefix of "
        "which the cumulated ratio is at least the cumulated product of uniforms. Block verification (arXiv "
        "2403.10444) compares one uniform a position with h_i, the share of the residual mass. With the "
        "product in its place, long prefixes are accepted too often, and the emitted tokens follow the "
        "drafter more than the target.",
        "`vllm_ascend/sample/rejection_sampler.py`, `rejection_random_sample_block_verify_pytorch`, "
        "`cum_uniform_token_probs`",
        "Position i is compared with its own uniform and the paper's h_i; the residual is that of the cumulated ratio.",
    ),
    "hsd": Bug(
        "HSD: the end of the draft is kept by the uncapped joint ratio",
        "With one draft and the capped ratios, all places inside the draft have the accept probabilities and residuals "
        "of block verification (arXiv 2403.10444): dividing a joint ratio by its running maximum is clipping it at 1 "
        "in every step. The whole draft is kept with the uncapped joint ratio. From two drafted tokens on that is more "
        "than a lossless rule can keep, as block verification is optimal for one draft (arXiv 2602.16961). On the toy "
        "case of the README, two drafts, 4/3 tokens are kept where 11/9 are possible.",
        "`transformers/generation/utils.py`, `_speculative_sampling`, `probability_ratio` in the branch `backward`",
        "The whole draft is kept with the capped ratio, as every shorter prefix is.",
    ),
    "sjd-temperature": Bug(
        "SJD: a rejected token's replacement goes through the warpers twice",
        "The sampler is given distributions that temperature and top-k have been applied to. After a "
        "rejection it takes the positive part of target minus draft, which is a distribution already, and "
        "passes its logarithm through `logits_warper` once more. At temperature 1 without top-k that changes "
        "nothing. At temperature 0.7 the replacement is drawn from the residual to the power 1 / 0.7, and "
        "with top-k its least likely tokens are cut.",
        "`scheduler/jacobi_iteration_lumina_mgpt.py`, `SpeculativeSampler.reject_sampling_single_token`",
        "The replacement is drawn from the normalised residual itself.",
        ("sjd-top-k",),
    ),
    "feifeibear": Bug(
        "LLMSpeculativeSampling: drawing token 0 raises",
        "`sample` raises a `RuntimeError` without a message whenever the drawn token is 0, a token like any other. So "
        "generation ends wherever the target or the drafter draws it.",
        "`sampling/utils.py`, `sample`",
        "Token 0 is returned.",
    ),
    "medusa": Bug(
        "Medusa: typical acceptance can accept the padding of a short path",
        "Paths of a tree that are shorter than the longest one are padded with token 0, and their logits with "
        "those of the last node. `evaluate_posterior` tests the padding like a drafted token, so a path whose "
        "padding passes the threshold is accepted beyond its end. The tree has no such node. Typical "
        "acceptance itself is relaxed by design; its total variation is not what is reported here.",
        "`medusa/model/utils.py`, `generate_candidates` (the appended zero) and `evaluate_posterior`",
        "Padding counts as rejected: the accepted length of a path is at most its own length.",
    ),
    "feifeibear-seed": Bug(
        "LLMSpeculativeSampling: with random_seed every accept test reads the same uniform",
        "With `random_seed`, `torch.manual_seed(random_seed)` runs before each accept test. So all tests of a cycle "
        "compare with one uniform, and acceptances are no longer independent. Over seeds the tokens do not follow the "
        "target. Here `sample` returns token 0, which it raises on otherwise.",
        "`sampling/speculative_sampling.py`, `speculative_sampling`, `if random_seed: torch.manual_seed(random_seed)`",
        "The generator is seeded once, before the loop.",
    ),
    "sjd-pac": Bug(
        "SJD-PAC: the token after a fully accepted window is drawn uniformly",
        "When every drafted token of the window is accepted, no position is left to resample. The sampler's rows are "
        "then the padding alone, a uniform distribution over the image vocabulary. Its first draw becomes the next "
        "committed token, without a test. The target's row after the window is not read. Full acceptance is rare in "
        "long windows; the cases here have windows of one or two tokens, so they show the whole effect.",
        "`scheduler/sjd_pac_iteration_lumina_mgpt.py`, `SJDPACSpeculativeSampler.__call__`, where `acc_len` is `L - 1` "
        "and `target_cols` is empty; `push_forward_model_kwargs_and_inputs` commits `additional_tokens[:, :1]`",
        "After a fully accepted window the next token is drawn from the target's last row.",
    ),
}
