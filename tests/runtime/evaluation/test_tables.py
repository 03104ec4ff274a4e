"""Tables of records: which results have rows of methods, and which comparisons belong together."""

from typing import Any

from underpaint.runtime.protocol.tables import runs_of, sides_of, summary


def compared(kind: str = "compare", temperature: float = 1.0, target: str = "a", share: float = 1.0) -> dict[str, Any]:
    row = {"method": "eagle2", "lossless": True, "target_nfe": 8.0, "speedup": 2.0, "images": 2}
    return {
        "kind": kind,
        "machine": {},
        "model": {"target": target, "engine": "cpu", "grid": [4, 4]},
        "settings": {"temperature": temperature},
        "rows": [{**row, "identical_share": share}],
    }


def merged(*results: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "merged", "runs": [{"results": one} for one in results]}


def test_only_results_with_a_row_per_method_are_ranked() -> None:
    premises = {"kind": "premises", "model": {"target": "a"}, "rows": [{"figure": "entropy, nats", "value": 3.0}]}
    kinds = [compared(kind) for kind in ("compare", "sweep", "evaluate")]
    record = merged(kinds[0], premises, merged(kinds[1], premises), kinds[2], {"kind": "certify", "rows": []})
    assert runs_of(record) == kinds
    assert runs_of(premises) == []
    assert sides_of([("p.json", premises)]) == []


def test_pictures_equal_to_plain_decoding_are_counted_on_the_model_of_a_run() -> None:
    runs = [compared(), compared(target="b"), compared(target="b", temperature=0.0, share=0.5)]
    assert [summary(merged(*runs), run)[0]["same_as_ar"] for run in runs] == [None, "1 of 2", "1 of 2"]
