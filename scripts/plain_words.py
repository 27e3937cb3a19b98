"""Counts unclear words and phrases in docstrings and comments.

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
FOLDERS = ("app", "config", "vllm_facts", "workbench", "vllm_understudy")
BUDGET = 10
"""Maximum number of violations in FOLDERS. Lower it to the count that is printed."""
MAX_WORDS = 30
"""Maximum length of a sentence, in words."""

OPENING = re.compile(r"(Who|Whom|Whose|What|Those|That|So|As|It|They|Such|Where|Whether)\b")
"""Openings of a docstring without a subject.

A docstring should begin with a verb in the third person, or with a noun.
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


class Violation(NamedTuple):
    """One place that should be rewritten."""

    file: str
    line: int
    rule: str
    text: str


def texts(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yields line, text and True for each docstring of a module, and False for each comment."""
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


def violations(file: Path) -> Iterator[Violation]:
    """Yields every rule that a file's docstrings and comments break."""
    name = str(file.relative_to(ROOT))
    for line, text, is_docstring in texts(file.read_text()):
        opening = OPENING.match(text)
        if is_docstring and opening is not None:
            yield Violation(name, line, "opening", opening.group())
        for rule, shape in SHAPES.items():
            for match in shape.finditer(text):
                yield Violation(name, line, rule, match.group())
        for sentence in re.split(r"[.:;!?](?=\s|$)|\n\s*\n", text):
            if len(sentence.split()) > MAX_WORDS:
                yield Violation(name, line, "length", " ".join(sentence.split())[:60])


def main(arguments: list[str]) -> int:
    """Returns the exit status: 1 above the budget."""
    places: list[Violation] = []
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            places += violations(file)
    if "--list" in arguments:
        for place in places:
            print(f"{place.file}:{place.line} {place.rule}: {place.text}")
    counts = Counter(place.rule for place in places).most_common()
    rules = ", ".join(f"{rule} {count}" for rule, count in counts)
    print(f"{len(places)} violations, at most {BUDGET}: {rules}")
    return len(places) > BUDGET


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
