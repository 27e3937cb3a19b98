"""Small changes to the code that some test should notice: `make mutants N=80 SEED=1 ROOMS="kvcache
schema"`.

Each mutant flips one comparison, condition, sign, boolean or number of a room, and runs that room's
tests: first those that start no process, then the others (scripts/mutant_trials.py). It is killed
when a test fails. Tests that take far too long kill it as well, but are counted apart: on a busy
machine they may say nothing. What survived, or took too long, is printed with its diff, for
somebody to decide whether a test is missing or the change means nothing. The same seed draws the
same mutants of the same code, evenly from the rooms.
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

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from scripts.mutant_trials import ROOMS, ROOT, Copy, Verdict

SIZE = 100
"""Constants of a module from here on are sizes: how long a slice is, how much a cache holds."""
OPERATORS = re.compile(
    r"core/(AddNot|NumberReplacer|Replace(True|False|And|Or|Break|Continue)With\w+"
    r"|ReplaceUnaryOperator_(USub_UAdd|Delete_Not|Delete_USub)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Mul_Add|FloorDiv_Mul|Div_Mul|Mod_Add)"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is|LtE?_(Lt|LtE|GtE?)|GtE?_(Gt|GtE|LtE?)))"
)
"""The changes that are made, by their names in cosmic-ray."""
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
        """The changed file.

        None when that is no Python, as a condition with := and `not` before it.
        """
        mutated: str | None = mutate_code(original, get_operator(self.operator)(), self.occurrence)
        try:
            compile(mutated or "", self.path, "exec")
        except SyntaxError:
            return None
        return mutated if mutated != original else None


def mutants_of(room: str) -> Iterator[Mutant]:
    """All mutants of a room."""
    names = [name for name in operator_names() if OPERATORS.fullmatch(name)]
    for path in sorted((ROOT / ROOMS[room][0]).rglob("*.py")):
        nodes = list(ast_nodes(get_ast(path.read_text())))
        for name in names:
            operator = get_operator(name)()
            places = [
                (node, start) for node in nodes for start, _ in operator.mutation_positions(node)
            ]
            for occurrence, (node, (line, _)) in enumerate(places):
                if not (_is_declared(node) or _is_size(node) or _is_unseen(node)):
                    yield Mutant(room, path.relative_to(ROOT).as_posix(), line, name, occurrence)


def _is_declared(node: object) -> bool:
    """Whether it is in a decorator or beside a class's name: frozen=True is the type checker's
    business.

    So is what is imported for it alone. The stars of parameters and arguments multiply nothing, and
    zip's strict=True asserts what is so anyway.
    """
    if getattr(node, "type", "") == "operator" and node.parent.type in STARRED:  # type: ignore[attr-defined]
        return True
    if getattr(node, "type", "") == "if_stmt" and "TYPE_CHECKING" in node.children[1].get_code():  # type: ignore[attr-defined]
        return True
    while (parent := getattr(node, "parent", None)) is not None:
        if parent.type == "decorator" or (
            parent.type == "classdef" and node is not parent.children[-1]
        ):
            return True
        if parent.type == "argument" and parent.get_code().lstrip().startswith("strict="):
            return True
        node = parent
    return False


def _is_size(node: object) -> bool:
    """Whether it is the number of a constant like `SLICE = 12_000`, or of one like `KEPT_BYTES = 1
    << 20` or `MOST = 2**24`, alone or beside others.

    One more or less of those, or twice as much, changes no answer. Limits of the protocol are
    smaller.
    """
    if getattr(node, "type", "") != "number":
        return False
    whole = node.parent if node.parent.type in POWERS else node  # type: ignore[attr-defined]
    statement = whole.parent.parent if whole.parent.type == "testlist_star_expr" else whole.parent
    if statement.type != "expr_stmt" or statement.parent.parent.type != "file_input":
        return False
    return whole is not node or (
        whole.value.replace("_", "").isdigit() and int(whole.value) >= SIZE
    )


def _is_unseen(node: object) -> bool:
    """Whether it is in what is written to the log, or in a type variable."""
    while (parent := getattr(node, "parent", None)) is not None:
        if parent.type == "atom_expr" and parent.get_code().lstrip().startswith(UNSEEN_CALLS):
            return True
        node = parent
    return False


def sample(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """`count` mutants, as many of each room: any line first, then any change to that line."""
    random = Random(seed)
    drawn: list[Mutant] = []
    for k, room in enumerate(rooms):
        lines: dict[tuple[str, int], list[Mutant]] = {}
        for mutant in mutants_of(room):
            lines.setdefault((mutant.path, mutant.line), []).append(mutant)
        share = count // len(rooms) + (k < count % len(rooms))
        choices = random.sample(list(lines.values()), min(share, len(lines)))
        drawn += [random.choice(mutants) for mutants in choices]
    return drawn


def diff(mutant: Mutant, original: str, code: str) -> str:
    old, new = original.splitlines(), code.splitlines()
    return "\n".join(difflib.unified_diff(old, new, mutant.path, mutant.path, lineterm="", n=2))


def run(copy: Copy, mutants: Sequence[Mutant]) -> dict[str, list[Verdict]]:
    """What became of each mutant, by room; told line by line."""
    verdicts: dict[str, list[Verdict]] = {}
    for number, mutant in enumerate(mutants, 1):
        original = (copy.folder / mutant.path).read_text()
        code = mutant.code(original)
        if code is None:
            print(f"{number}/{len(mutants)} is no change: {mutant}", flush=True)
            continue
        begun = time.monotonic()
        verdict = copy.judge(mutant.room, mutant.path, mutant.line, code)
        verdicts.setdefault(mutant.room, []).append(verdict)
        took_s = time.monotonic() - begun
        print(f"{number}/{len(mutants)} {verdict.value} in {took_s:.0f} s: {mutant}", flush=True)
        if verdict is not Verdict.KILLED:
            print(diff(mutant, original, code), flush=True)
    return verdicts


def share(verdicts: Sequence[Verdict]) -> str:
    """How many of them did not survive, and how many of those are in doubt."""
    survived, late = verdicts.count(Verdict.SURVIVED), verdicts.count(Verdict.TIMED_OUT)
    doubt = f", {late} of them by time-out" if late else ""
    return f"{len(verdicts) - survived} of {len(verdicts)}{doubt}"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.mutants", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--python", type=Path, required=True, help="the interpreter that runs the tests"
    )
    parser.add_argument("-n", type=int, default=80, help="how many mutants (default: 80)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    parser.add_argument(
        "--rooms", nargs="*", choices=ROOMS, default=[], help="of these rooms (default: all)"
    )
    options = parser.parse_args(argv)
    rooms = options.rooms or list(ROOMS)
    mutants = sample(rooms, options.n, options.seed)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder), options.python.absolute())
        for room in rooms:
            if wrong := copy.check(room):
                print(f"{wrong}\nthe tests of {room} fail without any mutant", file=sys.stderr)
                return 1
        verdicts = run(copy, mutants)
    rows = [f"{room} {share(those)}" for room, those in verdicts.items()]
    everything = [verdict for those in verdicts.values() for verdict in those]
    percent = 100 - 100 * everything.count(Verdict.SURVIVED) / max(1, len(everything))
    print(f"killed {share(everything)} ({percent:.0f} %): {'; '.join(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
