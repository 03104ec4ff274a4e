"""The benchmark of certificates, on few cases."""

from benchmarks import certify
from tests.benchmarks.ending import figures


def test_certificates_catch_what_is_wrong_and_pass_what_is_right(tmp_path, capsys):
    found = figures(certify.main, ["--runs", "3", "--cases", "1", "--wrong", "0", "--jobs", "1"], tmp_path, capsys)
    assert (found["wrong"], found["right"]) == (0, 3)
    assert found["false_alarms"] == found["missed"] == found["unnamed"] == []
    assert found["slowest_s"] is None
