"""Writes docs/one-request.md: the functions that a chat passes, with a sentence about each.

    $ python -m scripts.one_request

The sentences are those of the docstrings. `scripts/trace_request.py` prints the calls, with the
default settings and all extensions.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from scripts.generated_page import DOCS, one_line, table

ROOT = Path(__file__).resolve().parents[1]
PAGE = DOCS / "one-request.md"
START = "<!-- made: {} -->\n"
END = "<!-- end -->"
COLUMNS = ("Function", "What it does")
REFERENCE = "See `"
"""How the docstring of a method begins that its protocol describes."""
Documented = ast.FunctionDef | ast.ClassDef
Call = tuple[str, str]
"""File, relative to the root, and qualified name of a function."""


def traced_calls(flags: Sequence[str]) -> list[Call]:
    """Returns the calls of one request, in order."""
    words = [sys.executable, str(ROOT / "scripts" / "trace_request.py"), *flags]
    output = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=180, check=True
    ).stdout
    calls = []
    file = ""
    for line in output.partition("\n\n")[0].splitlines():
        if line.startswith(" "):
            calls.append((file, line.strip()))
        else:
            file = line
    return calls


def sentence_of(file: str, name: str) -> str:
    """Returns the first sentence about a function; a constructor has that of its class.

    LookupError for a function without a docstring.
    """
    scope, _, last = name.rpartition(".")
    text = _docstring(file, scope if last == "__init__" else name)
    if text.startswith(REFERENCE):
        text = _docstring_of_protocol(text.removeprefix(REFERENCE).partition("`")[0], last)
    return first_sentence(text)


def first_sentence(text: str) -> str:
    """Returns the beginning of a docstring, without line breaks."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".") + "."


def _docstring(file: str, name: str) -> str:
    node = _nodes(ROOT / file).get(name)
    text = None if node is None else ast.get_docstring(node)
    if not text:
        raise LookupError(f"{file}: {name} lies on the way of a chat, and has no docstring")
    return text


def _docstring_of_protocol(protocol: str, method: str) -> str:
    """Returns what a class, or a method of one, says that a docstring refers to."""
    owner = protocol.partition(".")[0]
    for path in sorted((ROOT / "app").rglob("*.py")):
        if f"class {owner}" in path.read_text("utf-8") and owner in _nodes(path):
            return _docstring(str(path.relative_to(ROOT)), f"{owner}.{method}")
    raise LookupError(f"no class {owner}, to which a docstring refers")


@cache
def _nodes(path: Path) -> dict[str, Documented]:
    """Returns the functions and classes of a file by their qualified names."""
    return dict(_named_nodes(ast.parse(path.read_text("utf-8")), prefix=""))


def _named_nodes(parent: ast.AST, prefix: str) -> Iterator[tuple[str, Documented]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = prefix + node.name
            yield name, node
            inner = f"{name}." if isinstance(node, ast.ClassDef) else f"{name}.<locals>."
            yield from _named_nodes(node, inner)
        else:
            yield from _named_nodes(node, prefix)


def table_of(calls: Sequence[Call]) -> str:
    """Returns a table of the calls; a row with the file begins each visit of a file."""
    rows = []
    for file, group in groupby(calls, key=itemgetter(0)):
        rows.append((f"**[{file.removeprefix('app/')}](../{file})**", ""))
        for _, name in dict.fromkeys(group):
            shown = name.rpartition("<locals>.")[2]
            rows.append((f"`{shown}`", one_line(sentence_of(file, name))))
    return table(COLUMNS, rows)


def flask_tables(calls: Sequence[Call], fast: Sequence[Call]) -> str:
    """Returns the tables of the calls before and after those that both ways have in common."""
    common = SequenceMatcher(a=calls, b=fast, autojunk=False).find_longest_match()
    end = common.a + common.size
    first = calls[common.a][1]
    last = calls[end - 1][1]
    sentence = f"From `{first}` to `{last}`, the functions are those of the fast way. Then:"
    return f"{table_of(calls[: common.a])}\n\n{sentence}\n\n{table_of(calls[end:])}"


def page() -> str:
    """Returns the present page with new tables."""
    fast = traced_calls(())
    sections = {
        "fast": table_of(fast),
        "flask": flask_tables(traced_calls(("--general",)), fast),
    }
    text = PAGE.read_text("utf-8")
    for name, section in sections.items():
        head, start, tail = text.partition(START.format(name))
        _, end, foot = tail.partition(END)
        text = f"{head}{start}\n{section}\n\n{end}{foot}"
    return text


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
