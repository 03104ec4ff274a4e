"""Instructions are counted with the loops that run them, and a loop without known trips is refused."""

from pathlib import Path

import pytest

from tools.sass import Block, blocks_of, loops_of, slots

SOURCE = """
def kernel(V, BLOCK, rows):
    total = 0
    for start in range(0, V, BLOCK):
        while total < rows:  # trips: rows / 2
            total += start
    while total > 0:
        total -= 1
"""
LISTING = """
	//## File "/somewhere/kernels/one.py", line 3
        /*0000*/                   MOV R1, R2 ;
.L_x_0:
	//## File "/somewhere/kernels/one.py", line 4
        /*0010*/                   IADD R1, R1, 0x1 ;
.L_x_1:
        /*0020*/                   IADD R1, R1, 0x1 ;
	//## File "/somewhere/kernels/one.py", line 5
        /*0030*/              @!P0 BRA `(.L_x_1) ;
	//## File "/somewhere/kernels/one.py", line 4
        /*0040*/               @P1 BRA `(.L_x_0) ;
        /*0050*/                   EXIT ;
.L_x_2:
        /*0060*/                   BRA `(.L_x_2);
"""


def test_a_loop_s_instructions_count_as_often_as_it_runs(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SOURCE)
    blocks = blocks_of(LISTING)
    assert [block.size for block in blocks] == [1, 1, 2, 1, 1, 1]
    assert {(head, tail) for head, tail, _ in loops_of(blocks[:5])} == {(2, 2), (1, 3)}
    # The outer loop runs 4 times, the inner one 3 times each; what nothing reaches does not count.
    assert slots(blocks, tmp_path, {"V": 32, "BLOCK": 8, "rows": 6}) == 1 + 4 * (1 + 3 * 2 + 1) + 1


def test_what_lies_behind_a_branch_of_parted_threads_counts(tmp_path: Path) -> None:
    """On sm_80 a branch for threads that have parted has no predicate, and a call of a label is a jump."""
    (tmp_path / "one.py").write_text(SOURCE)
    listing = """
        /*0000*/                   MOV R1, R2 ;
.L_x_0:
	//## File "/somewhere/kernels/one.py", line 4
        /*0010*/                   BRA.DIV ~URZ, `(.L_x_2) ;
        /*0020*/               @P1 CALL.REL.NOINC `(.L_x_1) ;
        /*0030*/                   BRA `(.L_x_0) ;
.L_x_1:
        /*0040*/                   CALL.REL.NOINC `($divide) ;
        /*0050*/                   EXIT ;
.L_x_2:
        /*0060*/                   BRA `(.L_x_0) ;
"""
    # One, four times round the loop of three, and the two behind it; nothing parts, so the last is not run.
    assert slots(blocks_of(listing), tmp_path, {"V": 32, "BLOCK": 8, "rows": 6}) == 1 + 4 * 3 + 2


def test_a_loop_that_was_unrolled_runs_less_often(tmp_path: Path) -> None:
    """Four steps of the range at a time; the other register is an address."""
    (tmp_path / "one.py").write_text(SOURCE)
    listing = """
.L_x_0:
	//## File "/somewhere/kernels/one.py", line 4
        /*0010*/                   VIADD R4, R4, 0x20 ;
        /*0020*/                   IADD3 R6, R6, 0x40, RZ ;
        /*0030*/                   ISETP.GE.AND P1, PT, R4, R8, PT ;
        /*0040*/              @!P1 BRA `(.L_x_0) ;
        /*0050*/                   EXIT ;
"""
    names = {"V": 64, "BLOCK": 8, "rows": 6}
    assert slots(blocks_of(listing), tmp_path, names) == 8 / 4 * 4 + 1
    assert slots(blocks_of(listing.replace("0x20", "0x8")), tmp_path, names) == 8 * 4 + 1


def test_a_loop_whose_trips_are_not_told_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SOURCE)
    endless = [Block(1, None, (1,)), Block(3, ("/somewhere/one.py", 7), (1, 2)), Block(1, None, ())]
    with pytest.raises(ValueError, match=r"one.py:7: expected trips .* add a comment '# trips: EXPRESSION'"):
        slots(endless, tmp_path, {"V": 1})
    with pytest.raises(ValueError, match="has no statement"):
        slots([endless[0], Block(3, ("/elsewhere/two.py", 1), (1, 2)), endless[2]], tmp_path, {})
