"""Counts habits that make code hard to read, and fails where a folder has too many.

    $ python -m scripts.code_habits           # compare with the budgets; exit status 1 above one
    $ python -m scripts.code_habits --list    # print each place as FILE:LINE HABIT
    $ python -m scripts.code_habits --lower   # lower the budgets to the present counts

The goal of a folder (`goals_of`) is a count per 1,000 lines of code. A folder above a goal may not
get further away: its budget is an absolute count, which is lowered and never raised. A folder that
has reached the goal may use it: one more lambda in ten thousand lines is no reason to fail.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BUDGETS_FILE = Path(__file__).with_name("code_habits.json")
CODE_FOLDERS = ("app", "config", "vllm_facts", "workbench", "vllm_understudy", "scripts")
TEST_FOLDERS = ("tests", "benchmarks", "fidelity")
FOLDERS = CODE_FOLDERS + TEST_FOLDERS
MAX_LINE_LENGTH = 100
MAX_POSITIONAL = 4
"""Most positional arguments of a call that a reader can tell apart."""
GOALS = {
    "vague name": 2.0,
    "tuple assignment": 4.0,
    "conditional expression": 12.0,
    "walrus": 2.0,
    "lambda": 3.0,
    "positional call": 1.5,
    "long line": 5.0,
    "constant below a class": 0.1,
    "abstract method outside an ABC": 0.0,
}
"""Most places per 1,000 lines of code in `CODE_FOLDERS`, by habit."""
TEST_GOAL_FACTOR = 2
"""How many times as many places `TEST_FOLDERS` may have."""
VAGUE_NAMES = frozenset(
    [
        "again",
        "around",
        "asked",
        "at",
        "before",
        "behind",
        "both",
        "each",
        "either",
        "found",
        "given",
        "here",
        "it",
        "its",
        "kept",
        "known",
        "least",
        "made",
        "more",
        "most",
        "of",
        "one",
        "ones",
        "own",
        "rest",
        "said",
        "so",
        "some",
        "such",
        "that",
        "then",
        "there",
        "those",
        "told",
        "what",
        "who",
        "whom",
        "whose",
    ]
)
"""Pronouns, participles and particles: none of them says what a variable holds."""
AFFIXES = re.compile(r"^_+|[_\d]+$")
NOT_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.INDENT,
        tokenize.NEWLINE,
        tokenize.NL,
    }
)


class Place(NamedTuple):
    """One use of a habit."""

    line: int
    habit: str


def places(source: str) -> Iterator[Place]:
    """Yields each place in a module's source that has one of the habits."""
    for number, line in enumerate(source.splitlines(), start=1):
        if len(line) > MAX_LINE_LENGTH:
            yield Place(number, "long line")
    tree = ast.parse(source)
    constant_line = constant_below_class(tree)
    if constant_line is not None:
        yield Place(constant_line, "constant below a class")
    for node in ast.walk(tree):
        line_number = getattr(node, "lineno", 0)
        for habit in habits_of(node):
            yield Place(line_number, habit)


def habits_of(node: ast.AST) -> Iterator[str]:
    """Yields the habits that a node has."""
    if is_tuple_assignment(node):
        yield "tuple assignment"
    if isinstance(node, ast.IfExp) or is_disguised_conditional(node):
        yield "conditional expression"
    if isinstance(node, ast.NamedExpr):
        yield "walrus"
    if isinstance(node, ast.Lambda):
        yield "lambda"
    if isinstance(node, ast.Call) and len(node.args) > MAX_POSITIONAL:
        yield "positional call"
    if isinstance(node, ast.ClassDef) and has_ineffective_abstract_method(node):
        yield "abstract method outside an ABC"
    name = bound_name(node)
    if name is not None and AFFIXES.sub("", name) in VAGUE_NAMES:
        yield "vague name"


def constant_below_class(module: ast.Module) -> int | None:
    """Returns the line of the first constant below a class: the file may have two subjects."""
    has_class = False
    for node in module.body:
        has_class = has_class or isinstance(node, ast.ClassDef)
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        is_constant = any(isinstance(name, ast.Name) and name.id.isupper() for name in targets)
        if has_class and is_constant:
            return node.lineno
    return None


def is_tuple_assignment(node: ast.AST) -> bool:
    """Returns true for `a, b = x, y`, which hides two statements in one line."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return False
    target = node.targets[0]
    value = node.value
    if isinstance(value, ast.Subscript):
        value = value.value
    if not isinstance(target, ast.Tuple | ast.List) or not isinstance(value, ast.Tuple | ast.List):
        return False
    return len(target.elts) == len(value.elts)


def is_disguised_conditional(node: ast.AST) -> bool:
    """Returns true for `c and x or y`, and for a literal that a condition indexes."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        first = node.values[0]
        return isinstance(first, ast.BoolOp) and isinstance(first.op, ast.And)
    return isinstance(node, ast.Subscript) and isinstance(
        node.value, ast.Tuple | ast.List | ast.Dict
    )


def has_ineffective_abstract_method(node: ast.ClassDef) -> bool:
    """Returns true for an abstract method whose class does not name `ABC` among its bases.

    Without the metaclass of `ABC`, the decorator has no effect: objects of the class can be made.
    """
    bases = {ast.unparse(base) for base in node.bases}
    if bases & {"ABC", "abc.ABC"}:
        return False
    return any(
        ast.unparse(decorator).endswith("abstractmethod")
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in method.decorator_list
    )


def bound_name(node: ast.AST) -> str | None:
    """Returns the name that a node binds; None if it binds none."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.ExceptHandler | ast.MatchAs):
        return node.name
    return None


def lines_of_code(source: str) -> int:
    """Returns the number of lines with code: without blank lines, comments and docstrings."""
    docstring_lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            docstring_lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE and token.start[0] not in docstring_lines:
            code_lines.update(range(token.start[0], token.end[0] + 1))
    return len(code_lines)


def counts_of(folder: str, prints: bool = False) -> tuple[Counter[str], int]:
    """Returns the count of each habit in the files of `folder`, and their lines of code."""
    counts: Counter[str] = Counter()
    code_lines = 0
    for path in sorted((ROOT / folder).rglob("*.py")):
        source = path.read_text("utf-8")
        code_lines += lines_of_code(source)
        for place in places(source):
            counts[place.habit] += 1
            if prints:
                print(f"{path.relative_to(ROOT)}:{place.line} {place.habit}")
    return counts, code_lines


def goals_of(folder: str) -> dict[str, float]:
    """Returns the most places per 1,000 lines of code that a folder should have, by habit."""
    if folder not in TEST_FOLDERS:
        return dict(GOALS)
    return {habit: goal * TEST_GOAL_FACTOR for habit, goal in GOALS.items()}


def check(folder: str, budget: dict[str, int]) -> list[str]:
    """Prints a folder's counts per 1,000 lines, and returns a line for each excess."""
    counts, code_lines = counts_of(folder)
    excesses = []
    for habit, goal in goals_of(folder).items():
        rate = counts[habit] * 1000 / max(code_lines, 1)
        print(f"{folder}: {counts[habit]} of {habit} ({rate:.1f} per 1,000 lines; goal {goal})")
        if counts[habit] > budget[habit] and rate > goal:
            excesses.append(
                f"{folder}: {counts[habit]} of {habit}, above the budget of {budget[habit]}"
            )
    return excesses


def lowered(budget: dict[str, int], counts: Counter[str]) -> dict[str, int]:
    """Returns the budget at most as high as the counts; a habit without a budget gets its count."""
    return {habit: min(budget.get(habit, counts[habit]), counts[habit]) for habit in GOALS}


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print each place")
    parser.add_argument(
        "--lower", action="store_true", help="lower the budgets to the present counts"
    )
    options = parser.parse_args()
    if options.list:
        for folder in FOLDERS:
            counts_of(folder, prints=True)
        return 0
    budgets: dict[str, dict[str, int]] = json.loads(BUDGETS_FILE.read_text("utf-8"))
    if options.lower:
        new_budgets = {
            folder: lowered(budgets.get(folder, {}), counts_of(folder)[0]) for folder in FOLDERS
        }
        BUDGETS_FILE.write_text(json.dumps(new_budgets, indent=2) + "\n", "utf-8")
        return 0
    excesses = []
    for folder in FOLDERS:
        excesses += check(folder, budgets[folder])
    for excess in excesses:
        print(excess, file=sys.stderr)
    return int(bool(excesses))


if __name__ == "__main__":
    sys.exit(main())
