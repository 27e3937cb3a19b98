"""Mutation tests: small changes to the code that a test should notice.

    $ make mutants N=80 SEED=1 ROOMS="kvcache schema" >report.txt
    $ make mutants AGAIN=report.txt

Each mutant flips one comparison, condition, sign, boolean or number of a room, and runs the tests
of that room: first the tests that start no process, then the others (scripts/mutant_trials.py). A
test that fails kills the mutant. Tests that take far too long kill it, too, but are counted
separately: on a busy machine they prove nothing. For each survivor and each timeout, the diff is
printed: either a test is missing, or the change has no effect. The same seed draws the same mutants
of the same code, evenly from the rooms. With --again, the mutants are those that a report printed:
its diffs are applied to the code of today. With --quick, only the tests that ran a mutant's line
run: a change of a constant then survives, as no test runs its line.
"""

from __future__ import annotations

import argparse
import difflib
import re
import subprocess
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

from scripts.mutant_trials import FAST, ROOMS, ROOT, SLOW, Copy, Judgment, Verdict

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
REPORTED = re.compile(
    r"^\S+ (?:SURVIVED|TIMED OUT) in \d+ s: (\w+) (.+)\n(--- (\S+)\n\+\+\+ .*\n(?:[-+ @].*\n)+)",
    re.MULTILINE,
)
"""A mutant in a report: its room, its name, its diff, and the path in the diff."""
STARRED = ("parameters", "param", "argument", "star_expr")


class UntestableRoomError(Exception):
    """The tests of a room fail without a mutant."""

    def __init__(self, room: str, output: str) -> None:
        super().__init__(f"{output}\nthe tests of {room} fail without a mutant")


@dataclass(frozen=True, slots=True)
class Change:
    """A file before and after a mutant."""

    room: str
    name: str
    path: str
    original: str
    code: str

    @property
    def line(self) -> int:
        """The number of the first line that differs."""
        originals = self.original.splitlines()
        lines = self.code.splitlines()
        pairs = zip(originals, lines, strict=False)
        for number, (original, line) in enumerate(pairs, 1):
            if original != line:
                return number
        return len(originals)

    def diff(self) -> str:
        """Returns the change as a diff."""
        lines = difflib.unified_diff(
            self.original.splitlines(),
            self.code.splitlines(),
            fromfile=self.path,
            tofile=self.path,
            lineterm="",
            n=2,
        )
        return "\n".join(lines)


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

    def change(self) -> Change | None:
        """Returns the change to the code; None if there is none or if it is not valid Python.

        For example, `not` in front of a condition with := is not valid.
        """
        original = (ROOT / self.path).read_text()
        code: str | None = mutate_code(original, get_operator(self.operator)(), self.occurrence)
        try:
            compile(code or "", self.path, "exec")
        except SyntaxError:
            return None
        if code is None or code == original:
            return None
        return Change(room=self.room, name=str(self), path=self.path, original=original, code=code)


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


def drawn_changes(rooms: Sequence[str], count: int, seed: int) -> list[Change]:
    """Returns the changes of the mutants that `sample` draws."""
    changes: list[Change] = []
    for mutant in sample(rooms, count, seed):
        change = mutant.change()
        if change is None:
            print(f"no change: {mutant}", flush=True)
        else:
            changes.append(change)
    return changes


def reported_changes(report: str) -> list[Change]:
    """Applies the diffs of a report to the code of today; a diff that does not fit is printed."""
    changes: list[Change] = []
    for match in REPORTED.finditer(report):
        room, name, patch, path = match.groups()
        result = subprocess.run(
            ["patch", "--quiet", "--output=-", "--reject-file=-", ROOT / path],
            input=patch,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            print(f"does not fit: {room} {name}\n{patch}", flush=True)
            continue
        original = (ROOT / path).read_text()
        change = Change(room=room, name=name, path=path, original=original, code=result.stdout)
        changes.append(change)
    return changes


def run(copy: Copy, changes: Sequence[Change]) -> Iterator[tuple[Change, Judgment]]:
    """Yields the judgment of each change, and prints it.

    Raises:
        UntestableRoomError: The tests of a room fail without a mutant.
    """
    checked: set[str] = set()
    for number, change in enumerate(changes, 1):
        if change.room not in checked:
            checked.add(change.room)
            failure = copy.check(change.room)
            if failure:
                raise UntestableRoomError(change.room, failure)
        start = time.monotonic()
        judgment = copy.judge(change.room, change.path, change.line, change.code)
        seconds = time.monotonic() - start
        print(
            f"{number}/{len(changes)} {judgment.verdict.value} in {seconds:.0f} s:"
            f" {change.room} {change.name}",
            flush=True,
        )
        if judgment.test:
            print(f"    by {judgment.test}", flush=True)
        if judgment.verdict is not Verdict.KILLED:
            print(change.diff(), flush=True)
        yield change, judgment


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
    parser.add_argument(
        "--again", type=Path, help="report whose survivors and timeouts are tried again"
    )
    parser.add_argument(
        "--quick", action="store_true", help="run only the tests that ran the line of a mutant"
    )
    options = parser.parse_args(argv)
    if options.again is None:
        rooms = options.rooms or list(ROOMS)
        changes = drawn_changes(rooms, options.n, options.seed)
    else:
        changes = reported_changes(options.again.read_text())
    stages = [FAST, SLOW]
    if options.quick:
        stages.clear()
    verdicts: dict[str, list[Verdict]] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder), options.python.absolute(), stages)
        try:
            for change, judgment in run(copy, changes):
                verdicts.setdefault(change.room, []).append(judgment.verdict)
        except UntestableRoomError as error:
            print(error, file=sys.stderr)
            return 1
    rows = [f"{room} {share(room_verdicts)}" for room, room_verdicts in verdicts.items()]
    total = [verdict for room_verdicts in verdicts.values() for verdict in room_verdicts]
    percent = 100 - 100 * total.count(Verdict.SURVIVED) / max(1, len(total))
    print(f"killed {share(total)} ({percent:.0f} %): {'; '.join(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
