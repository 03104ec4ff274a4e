"""Certificates and findings as lines of text."""

from collections.abc import Mapping

from underpaint.sim.certify.case import VerifierCase
from underpaint.sim.certify.certificate import Certificate
from underpaint.sim.certify.measurement import Measurement


def certificate_lines(certificate: Certificate, target: str, settings: Mapping[str, float] | None = None) -> list[str]:
    """Describe a certificate: the verdict, how it was found, and the smallest case of each kind of finding."""
    what = "chains" if certificate.chain else "trees"
    over = f" over {certificate.cycles} cycles" if certificate.cycles > 1 else ""
    settings_text = "".join(f" {name}={value:g}" for name, value in (settings or {}).items())
    verdict = certificate.verdict.upper() if certificate.verdict in ("biased", "faulty") else certificate.verdict
    bound = "" if certificate.promise is None else f" (promised: total variation {certificate.promise:g})"
    precision = {53: "float64", 24: "float32", 11: "float16", 8: "bfloat16"}[certificate.bits]
    lines = [
        f"{target}{settings_text}: {verdict}{bound} on '{certificate.drawn}' {what}{over}",
        f"  {certificate.cases} cases, {certificate.asked:,} decisions, {certificate.seconds:.1f} s, at the precision "
        f"of {precision}",
    ]
    counts = ", ".join(f"{one.count} {one.kind}" for one in certificate.findings)
    lines.append(
        f"  largest total variation {certificate.largest:.3g}"
        + (f"; of {certificate.cases} cases {counts}" if counts else "")
    )
    ways = {
        "quantiles": f"exact by quantiles; with confidence 0.999 no more than {certificate.unseen:.2g} of the uniforms "
        "can decide otherwise unseen",
        "decisions": "exact, every recorded decision weighed",
        "samples": f"by samples; a probability off by {certificate.unseen:g} or more is missed once in 1,000",
    }
    lines += [f"  {ways[how]}" for how in certificate.how]
    for one in certificate.findings:
        named = {"boundary": "a boundary finding", "biased": "a biased case", "faulty": "a faulty case"}[one.kind]
        if certificate.verdict == "within its bound" and one.kind == "biased":
            named = "a relaxed case"
        stopped = one.measured.stopped
        lines.append(f"  {named}" + ("" if stopped else f" (total variation up to {one.total_variation:.4g}):"))
        lines += [f"  {line}" for line in (*case_lines(one.case, one.measured), *finding_lines(one.measured))]
        if not one.shrunk and not (one.measured.fault is not None and one.measured.fault.kind == "hang"):
            lines.append("    there may be a smaller case: look longer with --shrink-seconds")
    if certificate.looks_like is not None:
        like = certificate.looks_like
        how = "decides exactly as" if like.same else f"is nearest (distance {like.distance:.2g}) to"
        lines.append(f"  it {how} the known mistake {' / '.join(like.names)}: {like.summary} ({like.report})")
    elif certificate.findings:
        lines.append("  it looks like none of the known mistakes")
    undecided = "samples" in certificate.how and certificate.at_most > (certificate.promise or 0.0)
    if certificate.verdict == "within its bound" and undecided:
        most = f"samples leave a total variation of up to {certificate.at_most:.3g} possible"
        lines.append(f"  warning: {most}; a smaller --margin takes more of them")
    if certificate.verdict == "lossless but for a boundary":
        lines.append("  warning: a uniform at the end of its range emits such a token; --strict makes that exit code 1")
    return lines


def case_lines(case: VerifierCase, measurement: Measurement) -> list[str]:
    """Describe a case: its size, and the token and both distributions of each node of one of its trees."""
    lines = [
        f"  case: {case.vocab_size} tokens, {len(case.parents) - 1} drafted, siblings drawn '{case.drawn}'"
        + (f", logit processors ban {list(case.banned)}" if case.banned else "")
    ]
    drafts = {tuple(draft.tree.tokens.tolist()): (weight, draft) for weight, draft in case.drafts}
    tokens = (
        measurement.fault_tokens if measurement.fault_tokens in drafts else max(drafts, key=lambda one: drafts[one][0])
    )
    weight, draft = drafts[tokens]
    lines.append(f"    the tree that is drafted with probability {weight:.4g}:")
    for node, above in enumerate(case.parents):
        where = "root" if not node else f"node {node}, a child of {above}, token {tokens[node]}"
        target, drafted = _row(tuple(draft.target_probs[node])), _row(tuple(draft.tree.draft_probs[node]))
        lines.append(f"      {where}: next token by the target {target}, by the drafter {drafted}")
    return lines


def finding_lines(measurement: Measurement) -> list[str]:
    """Describe the fault, and where the distribution differs from the target's."""
    lines: list[str] = []
    if measurement.fault is not None:
        where = "" if measurement.fault.node is None else f" at node {measurement.fault.node}"
        lines.append(f"  {measurement.fault.kind}{where}: {measurement.fault.detail}")
        if measurement.fault_noise:
            lines.append(f"    noise {[float(f'{one:.6g}') for one in measurement.fault_noise]}")
    if measurement.difference is not None:
        one = measurement.difference
        after = f"after tokens {list(one.before)}" if one.before else "at the root"
        lines.append(
            f"  total variation {one.total_variation:.4g}; it parts from the target at node {one.node}, {after}:"
        )
        lines.append(f"    the next token should have {_row(one.wanted)}, it has {_row(one.found)}")
    elif measurement.fault is None:
        lines.append(f"  total variation {measurement.total_variation:.3g}")
    return lines


def _row(row: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{one:.4f}" for one in row) + ")"
