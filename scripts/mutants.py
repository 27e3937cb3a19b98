"""Mutation tests: small changes to the code that a test should notice.

    $ make mutants N=80 SEED=1 ROOMS="kvcache schema"

Each mutant flips one comparison, condition, sign, boolean or number of a room, and runs the tests
of that room: first the tests that start no process, then the others (scripts/mutant_trials.py). A
test that fails kills the mutant. Tests that take far too long kill it, too, but are counted
separately: on a busy machine they prove nothing. For each survivor and each timeout, the diff is
printed: either a test is missing, or the change has no effect. The same seed draws the same mutants
of the same code, evenly from the rooms.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from scripts.mutant_trials import ROOMS, ROOT, Copy, Verdict

MIN_SIZE = 100
"""Constants of a module from this value up are sizes, such as those of slices and caches."""
OPERATORS = re.compile(
    r"core/(AddNot|NumberReplacer|Replace(True|False|And|Or|Break|Continue)With\w+"
    r"|ReplaceUnaryOperator_(USub_UAdd|Delete_Not|Delete_USub)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Mul_Add|FloorDiv_Mul|Div_Mul|Mod_Add)"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is"
    r"|LtE?_(Lt|LtE|GtE?)|GtE?_(Gt|GtE|LtE?)))"
)
"""The kinds of changes, by their names in cosmic-ray."""
UNSEEN_CALLS = ("log.", "logger.", "TypeVar(")
POWERS = ("shift_expr", "power")
STARRED = ("parameters", "param", "argument", "star_expr")


@dataclass(frozen=True, slots=True)
class Mutant:
    """The `occurrence`-th place of `path` where `operator` can change something."""

    room: str
    path: str
    line: int
    operator: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.operator.removeprefix('core/')}"

    def code(self, original: str) -> str | None:
        """Returns the changed file; None if it equals `original` or is not valid Python.

        For example, `not` in front of a condition with := is not valid.
        """
        mutated: str | None = mutate_code(original, get_operator(self.operator)(), self.occurrence)
        try:
            compile(mutated or "", self.path, "exec")
        except SyntaxError:
            return None
        if mutated == original:
            return None
        return mutated


def mutants_of(room: str) -> Iterator[Mutant]:
    """Yields all mutants of a room."""
    names = [name for name in operator_names() if OPERATORS.fullmatch(name)]
    for path in sorted((ROOT / ROOMS[room][0]).rglob("*.py")):
        nodes = list(ast_nodes(get_ast(path.read_text())))
        for name in names:
            operator = get_operator(name)()
            places = [
                (node, start) for node in nodes for start, _ in operator.mutation_positions(node)
            ]
            for occurrence, (node, (line, _)) in enumerate(places):
                if not (_is_declaration(node) or _is_size(node) or _is_unseen(node)):
                    yield Mutant(
                        room=room,
                        path=path.relative_to(ROOT).as_posix(),
                        line=line,
                        operator=name,
                        occurrence=occurrence,
                    )


def _is_declaration(node: Any) -> bool:
    """Returns True for code that the type checker judges, and for code without an effect.

    The type checker judges decorators, arguments of classes such as frozen=True, and imports for
    TYPE_CHECKING. The stars of parameters and arguments are not multiplications, and zip's
    strict=True asserts what always holds.
    """
    kind = getattr(node, "type", "")
    if kind == "operator" and node.parent.type in STARRED:
        return True
    if kind == "if_stmt" and "TYPE_CHECKING" in node.children[1].get_code():
        return True
    for child, parent in _ancestors(node):
        if parent.type == "decorator":
            return True
        if parent.type == "classdef" and child is not parent.children[-1]:
            return True
        if parent.type == "argument" and parent.get_code().lstrip().startswith("strict="):
            return True
    return False


def _ancestors(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each node on the way to the root, with its parent."""
    parent = getattr(node, "parent", None)
    while parent is not None:
        yield node, parent
        node = parent
        parent = node.parent


def _is_size(node: Any) -> bool:
    """Returns True for the number of a constant such as `SLICE = 12_000` or `MAX_BYTES = 1 << 20`.

    A size that is one higher or lower, or twice as high, changes no response. Limits of the
    protocol are lower than `MIN_SIZE`.
    """
    if getattr(node, "type", "") != "number":
        return False
    value = node
    if node.parent.type in POWERS:
        value = node.parent
    statement = value.parent
    if statement.type == "testlist_star_expr":
        statement = statement.parent
    if statement.type != "expr_stmt" or statement.parent.parent.type != "file_input":
        return False
    if value is not node:
        return True
    digits = value.value.replace("_", "")
    return digits.isdigit() and int(digits) >= MIN_SIZE


def _is_unseen(node: Any) -> bool:
    """Returns True for code in a log message or in a type variable."""
    for _, parent in _ancestors(node):
        if parent.type == "atom_expr" and parent.get_code().lstrip().startswith(UNSEEN_CALLS):
            return True
    return False


def sample(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draws `count` mutants, evenly from the rooms: first a line, then a change to that line."""
    random = Random(seed)
    mutants: list[Mutant] = []
    for index, room in enumerate(rooms):
        lines: dict[tuple[str, int], list[Mutant]] = {}
        for mutant in mutants_of(room):
            lines.setdefault((mutant.path, mutant.line), []).append(mutant)
        room_count = count // len(rooms) + (index < count % len(rooms))
        choices = random.sample(list(lines.values()), min(room_count, len(lines)))
        mutants += [random.choice(line_mutants) for line_mutants in choices]
    return mutants


def diff(mutant: Mutant, original: str, code: str) -> str:
    """Returns the change of a mutant as a diff."""
    lines = difflib.unified_diff(
        original.splitlines(),
        code.splitlines(),
        fromfile=mutant.path,
        tofile=mutant.path,
        lineterm="",
        n=2,
    )
    return "\n".join(lines)


def run(copy: Copy, mutants: Sequence[Mutant]) -> dict[str, list[Verdict]]:
    """Returns the verdicts of the mutants by room, and prints each of them."""
    verdicts: dict[str, list[Verdict]] = {}
    for number, mutant in enumerate(mutants, 1):
        original = (copy.folder / mutant.path).read_text()
        code = mutant.code(original)
        if code is None:
            print(f"{number}/{len(mutants)} is no change: {mutant}", flush=True)
            continue
        start = time.monotonic()
        verdict = copy.judge(mutant.room, mutant.path, mutant.line, code)
        verdicts.setdefault(mutant.room, []).append(verdict)
        seconds = time.monotonic() - start
        print(f"{number}/{len(mutants)} {verdict.value} in {seconds:.0f} s: {mutant}", flush=True)
        if verdict is not Verdict.KILLED:
            print(diff(mutant, original, code), flush=True)
    return verdicts


def share(verdicts: Sequence[Verdict]) -> str:
    """Returns the share of mutants that were killed, and the number of timeouts among them."""
    killed = len(verdicts) - verdicts.count(Verdict.SURVIVED)
    text = f"{killed} of {len(verdicts)}"
    timeouts = verdicts.count(Verdict.TIMED_OUT)
    if timeouts:
        text += f", {timeouts} of them by timeout"
    return text


def main(argv: Sequence[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.mutants", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--python", type=Path, required=True, help="the interpreter that runs the tests"
    )
    parser.add_argument("-n", type=int, default=80, help="number of mutants (default: 80)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw (default: 1)")
    parser.add_argument(
        "--rooms", nargs="*", choices=ROOMS, default=[], help="rooms to change (default: all)"
    )
    options = parser.parse_args(argv)
    rooms = options.rooms or list(ROOMS)
    mutants = sample(rooms, options.n, options.seed)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder), options.python.absolute())
        for room in rooms:
            failure = copy.check(room)
            if failure:
                print(f"{failure}\nthe tests of {room} fail without a mutant", file=sys.stderr)
                return 1
        verdicts = run(copy, mutants)
    rows = [f"{room} {share(room_verdicts)}" for room, room_verdicts in verdicts.items()]
    total = [verdict for room_verdicts in verdicts.values() for verdict in room_verdicts]
    percent = 100 - 100 * total.count(Verdict.SURVIVED) / max(1, len(total))
    print(f"killed {share(total)} ({percent:.0f} %): {'; '.join(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
