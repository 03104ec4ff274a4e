"""Count the instructions that a compiled kernel issues, from its machine code (SASS) and the trip counts of its loops.

A multiprocessor issues at most four instructions per cycle, one from each of its four schedulers. A kernel therefore
takes at least a quarter as many cycles as it issues instructions, however few bytes it moves. Every branch counts as
taken. Time spent waiting for memory or at barriers is not counted.

A loop's trip count follows from its own line in the kernel: `range(...)` of arguments and constants, or a comment
`# trips: EXPRESSION` if it depends on data. The expression may use the arguments, constants and `trips` of the launch.
Where the assembler has unrolled a loop over a range, its counter grows by several steps at once, so the body counts
that many times less.
"""

import ast
import re
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

_LINE: Final = re.compile(r'//## File "(.*?)", line (\d+)')
_LABEL: Final = re.compile(r"^(\.L_\w+):")
_CODE: Final = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]+\s+)?(.*?)\s*;")
_GOES: Final = re.compile(r"^(BRA|CALL|BSSY|WARPSYNC\.\w+)\b.*`\((\.L_\w+)\)")
_ENDS: Final = re.compile(r"(BRA(?!\.DIV)|EXIT|RET|BRX)\b")
_ADDS: Final = re.compile(r"^(?:VIADD|U?IADD3|IMAD\.IADD) (U?R\d+),(?: U?P\d,)? \1(?:\.reuse)?, (-?0x[0-9a-f]+)\b")
_COMPARES: Final = re.compile(r"^U?ISETP\S* U?P\d, U?PT, (U?R\d+)\b")
_ACCESSES: Final = re.compile(r"(LD|LDG|LDGSTS|ST|STG|ATOM|ATOMG|RED|REDG|UBLKCP|UTMALDG|UTMASTG)\b")
_TRIPS: Final = re.compile(r"#\s*trips: (.+?)\s*$")


class Block(NamedTuple):
    """Instructions without a branch between them.

    Attributes:
        size: Number of instructions.
        line: Source line at the end of the block, with its file; None if unknown.
        following: Indices of the blocks that may run next.
        adds: Registers and the numbers that are added to them.
        compares: Registers that are compared.
    """

    size: int
    line: tuple[str, int] | None
    following: tuple[int, ...]
    adds: tuple[tuple[str, int], ...] = ()
    compares: tuple[str, ...] = ()


def disassemble(cubin: bytes, tool: str, *options: str) -> str:
    """Return what a CUDA tool in Triton's wheel prints for a cubin."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([program, *options, file.name], capture_output=True, text=True, check=True).stdout


def listing_of(cubin: bytes) -> str:
    """Return what `nvdisasm -c -g` prints for a cubin, kept in Triton's cache: the tool takes 0.4 s to start."""
    import triton
    from triton.runtime.cache import get_cache_manager

    name = "nvdisasm.txt"
    manager = get_cache_manager(sha256(f"{triton.__version__} nvdisasm -c -g ".encode() + cubin).hexdigest())
    file = manager.get_file(name) or manager.put(disassemble(cubin, "nvdisasm", "-c", "-g"), name, binary=False)
    return Path(file).read_text(encoding="utf-8")


def waits_first(listing: str) -> bool:
    """Return whether a kernel waits for earlier kernels (ACQBULK) before its code accesses memory, except to prefetch.

    Args:
        listing: Output of `nvdisasm -c -g`.
    """
    for text in listing.splitlines():
        match = _CODE.match(text)
        if match and (match[1] == "ACQBULK" or _ACCESSES.match(match[1])):
            return match[1] == "ACQBULK" and "@" not in text
    return False


def blocks_of(listing: str) -> list[Block]:
    """Return the basic blocks of a kernel, entry first, from the output of `nvdisasm -c -g`.

    A branch for warps with diverged threads (BRA.DIV) counts as not taken: all threads of a warp go together here. A
    call of a label within the kernel does not return (sm_80 leaves loops this way); a call of a function does.
    """
    labels: dict[str, int] = {}
    parts: list[tuple[list[str], tuple[str, int] | None, str]] = []
    instructions, line, seen = list[str](), None, False
    for text in listing.splitlines():
        if match := _LINE.search(text):
            line = (match[1], int(match[2]))
        elif match := _LABEL.match(text):
            if instructions:
                parts.append((instructions, line, ""))
                instructions = []
            labels[match[1]] = len(parts)
        elif match := _CODE.match(text):
            seen = True
            code = match[1]
            instructions.append(code)
            goes = _GOES.match(code)
            if _ENDS.match(code) or (goes and goes[1] == "CALL"):
                always = "@" not in text.split("*/", 1)[1].split(";")[0] and not re.search(r"\bP\d,", code)
                parts.append((instructions, line, ("!" if always else "?") + (goes[2] if goes else "")))
                instructions = []
        elif seen and text.startswith("//---"):
            break
    if instructions:
        parts.append((instructions, line, ""))
    blocks = []
    for number, (instructions, line, end) in enumerate(parts):
        following = set()
        if not end.startswith("!") and number + 1 < len(parts):
            following.add(number + 1)
        if end[1:]:
            following.add(labels[end[1:]])
        adds = tuple((match[1], int(match[2], 16)) for code in instructions if (match := _ADDS.match(code)))
        compares = tuple(match[1] for code in instructions if (match := _COMPARES.match(code)))
        goes_to = tuple(sorted(one for one in following if one < len(parts)))
        blocks.append(Block(len(instructions), line, goes_to, adds, compares))
    return blocks


def loops_of(blocks: list[Block]) -> list[tuple[int, int, set[int]]]:
    """Return the natural loops: the head block, the block that jumps back to it, and all blocks inside."""
    before: list[list[int]] = [[] for _ in blocks]
    for number, block in enumerate(blocks):
        for one in block.following:
            before[one].append(number)
    order, reached = list[int](), {0}
    stack = [(0, iter(blocks[0].following))]
    while stack:
        number, rest = stack[-1]
        one = next(rest, None)
        if one is None:
            order.append(number)
            stack.pop()
        elif one not in reached:
            reached.add(one)
            stack.append((one, iter(blocks[one].following)))
    order.reverse()
    dominators = dict.fromkeys(order, reached)
    dominators[0] = {0}
    changed = True
    while changed:
        changed = False
        for number in order[1:]:
            new_dominators = set.intersection(*(dominators[one] for one in before[number] if one in reached)) | {number}
            changed |= new_dominators != dominators[number]
            dominators[number] = new_dominators
    loops = []
    for tail in order:
        for head in blocks[tail].following:
            if head in dominators[tail]:
                inside, waiting = {head, tail}, [tail]
                while waiting:
                    number = waiting.pop()
                    for one in before[number] if number != head else ():
                        if one in reached and one not in inside:
                            inside.add(one)
                            waiting.append(one)
                loops.append((head, tail, inside))
    return loops


@cache
def _source_loops(file: Path) -> dict[int, tuple[str, int | None, str]]:
    """Return by line of each loop statement: its trips, the line of the enclosing loop, and its range's step or ""."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    loops: dict[int, tuple[str, int | None, str]] = {}

    def visit(node: ast.AST, around: int | None) -> None:
        if isinstance(node, ast.For | ast.While):
            comment = _TRIPS.search(lines[node.lineno - 1])
            plain = f"len({ast.unparse(node.iter)})" if isinstance(node, ast.For) else ""
            bounds = node.iter.args if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) else []
            step = ast.unparse(bounds[2]) if len(bounds) > 2 else "1" if bounds else ""
            loops[node.lineno] = (comment[1] if comment else plain, around, step)
            around = node.lineno
        for part in ast.iter_child_nodes(node):
            visit(part, None if isinstance(part, ast.FunctionDef) else around)

    visit(ast.parse(text), None)
    return loops


@cache
def _smallest_first(blocks: tuple[Block, ...]) -> list[tuple[int, int, set[int]]]:
    return sorted(loops_of(list(blocks)), key=lambda loop: len(loop[2]))


def slots(blocks: list[Block], kernels: Path, names: Mapping[str, Any]) -> float:
    """Return the number of instructions that one warp of a program issues.

    Args:
        blocks: The basic blocks of the kernel, entry first.
        kernels: The folder of the kernels' sources.
        names: Values from which the loops' trip counts are computed.

    Raises:
        ValueError: A loop has no statement in the sources, or its trip count does not follow from `names`.
    """
    weights = [0.0] * len(blocks)
    for number in _reachable(blocks):
        weights[number] = 1.0
    earlier_loops: list[tuple[Path, int, set[int]]] = []
    for head, tail, inside in _smallest_first(tuple(blocks)):
        if len(inside) == 1 and blocks[tail].size == 1:
            continue  # the padding after a kernel
        # The end of a loop names its statement, unless the compiler merged it with code that was inlined there.
        for number in (tail, head, *sorted(inside)):
            file, line = _statement(blocks[number].line, kernels)
            while line and any(file == other and line == at and inside > within for other, at, within in earlier_loops):
                line = _source_loops(file)[line][1]  # the loop's end was moved into an inner loop
            if line is not None:
                break
        else:
            raise ValueError(f"SASS: a loop that ends at {blocks[tail].line} has no statement in {kernels}")
        loops = _source_loops(file)
        body = inside.difference(*(within for _, _, within in earlier_loops if within < inside))
        earlier_loops.append((file, line, inside))
        namespace = {"len": len, "range": range, "max": max, "min": min, **names}
        try:
            trips = float(eval(loops[line][0], namespace))
        except Exception as error:
            raise ValueError(
                f"{file.name}:{line}: expected trips that follow from {sorted(names)}, got {loops[line][0]!r}; add a "
                f"comment '# trips: EXPRESSION' ({error})"
            ) from error
        with suppress(NameError):  # a step that the kernel computes
            trips /= _unrolled(
                [blocks[number] for number in body], blocks[tail], eval(loops[line][2] or "0", namespace)
            )
        for number in inside:
            weights[number] *= trips
    return sum(weight * block.size for weight, block in zip(weights, blocks, strict=True))


def _unrolled(blocks: list[Block], tail: Block, step: int) -> int:
    """Return how many steps of its range a loop takes at once: what it adds to the counter that its end compares."""
    sums = [abs(number) // step for block in blocks for name, number in block.adds if step and name in tail.compares]
    return max([1, *(steps for steps in sums if steps in (2, 4, 8, 16))])


@cache
def _statement(place: tuple[str, int] | None, kernels: Path) -> tuple[Path, int | None]:
    """Return the kernel file of a line of code, and the line of the innermost loop statement around it."""
    file = kernels / Path(place[0] if place else "none").name
    if place is None or not file.is_file():
        return file, None
    tree = ast.parse(file.read_text(encoding="utf-8"))
    within = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.While) and node.lineno <= place[1] <= (node.end_lineno or 0)
    ]
    return file, max(within, default=None)


def _reachable(blocks: list[Block]) -> set[int]:
    reached, waiting = {0}, [0]
    while waiting:
        for one in blocks[waiting.pop()].following:
            if one not in reached:
                reached.add(one)
                waiting.append(one)
    return reached
