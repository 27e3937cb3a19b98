"""Draws sentences, docstrings, messages and names of tests for a review of the prose.

    $ python -m scripts.prose_sample [COMMIT]              # twenty docstrings, twenty messages
    $ python -m scripts.prose_sample --sentences [COMMIT]  # fifty sentences for users
    $ python -m scripts.prose_sample --tests [COMMIT]      # twenty names of tests

The fifty sentences are from the documentation, the help texts and the messages of errors and logs,
in this proportion: 30, 10, 10. The hash of the commit, or of HEAD, seeds the choice, so that a
reviewer draws the same ones.

A `ConversionError` has only the end of a message, such as "a list of messages". It is shown as in
the response, which begins with "Input should be".
"""

import ast
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from app.core.settings import settings_table
from scripts.generated_page import MARKER
from scripts.prose_figures import ALSO_READ, COUNTED, prose, sentences

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("app", "config", "vllm_facts", "workbench", "vllm_understudy")
SAMPLE_SIZE = 20
PAGE_SENTENCES = 30
HELP_SENTENCES = 10
MESSAGES = 10
HELP = "--help"
LOG_METHODS = frozenset(("debug", "info", "warning", "error", "exception", "critical"))
MIN_MESSAGE_WORDS = 3
MIN_SENTENCE_WORDS = 4
PREFIXES = {"ConversionError": "Input should be "}
"""Beginning of a message that has only its end in the code (app/core/protocol/decoding.py)."""
OPENING_QUOTE = re.compile(r"""(f?['"])""")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Yields path and syntax tree of each file of the product."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text("utf-8"))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields line and docstring of the module, its classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def message_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Yields the calls that create an exception in a raise statement, or that log."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield node.exc
        elif isinstance(node, ast.Call) and _is_log_method(node.func):
            yield node


def _is_log_method(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr in LOG_METHODS


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields line and source of each literal message of an exception or a log line."""
    for call in message_calls(tree):
        prefix = PREFIXES.get(_name_of(call.func), "")
        for argument in call.args:
            if _has_text(argument):
                text = ast.unparse(argument)
                yield call.lineno, OPENING_QUOTE.sub(rf"\1{prefix}", text, count=1)


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id
    return ""


def _has_text(argument: ast.expr) -> bool:
    """Returns whether an argument is a text whose literal parts have enough words."""
    if not isinstance(argument, ast.Constant | ast.JoinedStr | ast.BinOp):
        return False
    literals = [
        part.value
        for part in ast.walk(argument)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    return len(" ".join(literals).split()) >= MIN_MESSAGE_WORDS


def user_sentences(chooser: random.Random) -> Iterator[tuple[str, str]]:
    """Yields fifty sentences with their sources: of pages, of help texts, and of messages."""
    page_sentences = []
    for pattern in (*COUNTED, *ALSO_READ):
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text("utf-8")
            if not text.startswith(MARKER):
                name = str(path.relative_to(ROOT))
                page_sentences += [
                    (name, sentence)
                    for sentence in sentences(prose(text, code=""))
                    if len(sentence.split()) >= MIN_SENTENCE_WORDS
                ]
    help_sentences = [
        (HELP, sentence) for row in settings_table().rows for sentence in sentences(row.help)
    ]
    message_texts = [
        (f"{path}:{line}", text) for path, tree in trees() for line, text in messages(tree)
    ]
    yield from chooser.sample(page_sentences, PAGE_SENTENCES)
    yield from chooser.sample(help_sentences, HELP_SENTENCES)
    yield from chooser.sample(message_texts, MESSAGES)


def test_names() -> Iterator[str]:
    """Yields path and name of each test function."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield f"{path.relative_to(ROOT)}::{node.name}"


def main(arguments: Sequence[str]) -> None:
    """Prints the sample of a commit."""
    revisions = [argument for argument in arguments if not argument.startswith("--")]
    revision = "HEAD"
    if revisions:
        revision = revisions[0]
    command = ["git", "rev-parse", "--verify", revision]
    commit = subprocess.check_output(command, cwd=ROOT, text=True).strip()
    chooser = random.Random(commit)
    print(f"Seed: {commit}")
    if "--sentences" in arguments:
        for number, (source, text) in enumerate(user_sentences(chooser), 1):
            print(f"{number}. {text} ({source})")
        return
    if "--tests" in arguments:
        for name in chooser.sample([*test_names()], SAMPLE_SIZE):
            print(name)
        return
    for title, read in (("Docstrings", docstrings), ("Messages", messages)):
        texts = [(path, *text) for path, tree in trees() for text in read(tree)]
        print(f"\n{title}: {SAMPLE_SIZE} of {len(texts)}\n")
        for path, line, text in chooser.sample(texts, SAMPLE_SIZE):
            print(f"{path}:{line}\n{text}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
