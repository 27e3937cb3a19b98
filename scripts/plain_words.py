"""Counts words and shapes in docstrings and comments that a reader has to read twice.

python scripts/plain_words.py --list prints each as FILE:LINE RULE: TEXT. Lint fails above BUDGET.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = ("app", "config", "vllm_understudy")
BUDGET = 15
"""Most finds in FOLDERS. Lower it to the count that is printed."""
MOST_WORDS = 30
"""Longest sentence, in words."""

OPENING = re.compile(r"(Who|Whom|Whose|What|Those|That|So|As|It|They|Such|Where|Whether)\b")
"""Openings of a docstring that name no subject.

A verb in the third person or the searched noun opens it.
"""
SHAPES = {
    "people": re.compile(r"\b(some|no|any|every)body(?:'s)?\b", re.I),
    "speech": re.compile(r"\b(tell|tells|told|say|says|said|hear|hears|heard)\b", re.I),
    "riddle": re.compile(
        r"\b(?:is|are|was|were|of|for|by|to|with|from|in|at|on|and|or|than|as)"
        r" (?:what|those|who(?:m|se|ever))\b"
        r"|\b(?:of|in|to|by) which\b|\bthe like\b|\bof (?:it|them|its own)\b"
        r"|\bwhat (?:it|they) (?:is|are|has|have)\b",
        re.I,
    ),
}


class Find(NamedTuple):
    """One place that should be rewritten."""

    file: str
    line: int
    rule: str
    text: str


def texts(source: str) -> Iterator[tuple[int, str, bool]]:
    """Line, text and whether it is a docstring, of each docstring and comment of a module."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value, True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: "), False


def finds(file: Path) -> Iterator[Find]:
    """Every rule that a file's docstrings and comments break."""
    name = str(file.relative_to(ROOT))
    for line, text, is_docstring in texts(file.read_text()):
        if is_docstring and (opening := OPENING.match(text)):
            yield Find(name, line, "opening", opening.group())
        for rule, shape in SHAPES.items():
            yield from (Find(name, line, rule, found.group()) for found in shape.finditer(text))
        for sentence in re.split(r"[.:;!?](?=\s|$)|\n\s*\n", text):
            if len(sentence.split()) > MOST_WORDS:
                yield Find(name, line, "length", " ".join(sentence.split())[:60])


def main(arguments: list[str]) -> int:
    """Exit status 1 above the budget."""
    found = [
        find
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        for find in finds(file)
    ]
    if "--list" in arguments:
        for find in found:
            print(f"{find.file}:{find.line} {find.rule}: {find.text}")
    rules = ", ".join(
        f"{rule} {count}" for rule, count in Counter(find.rule for find in found).most_common()
    )
    print(f"{len(found)} finds, at most {BUDGET}: {rules}")
    return len(found) > BUDGET


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
