"""The habits that scripts/code_habits.py counts."""

from collections import Counter

import pytest

from scripts.code_habits import lines_of_code, lowered, places


@pytest.mark.parametrize(
    ("source", "habits"),
    [
        ("its = 1", ["vague name"]),
        ("def f(told, _given_2): ...", ["vague name", "vague name"]),
        ("a, b = x, y", ["tuple assignment"]),
        ("host, port = address", []),
        ("x = a if b else c", ["conditional expression"]),
        ("x = a and b or c", ["conditional expression"]),
        ("x = (a, b)[c]", ["conditional expression"]),
        ("if (x := f()): ...", ["walrus"]),
        ("f = lambda: 1", ["lambda"]),
        ("f(1, 2, 3, 4, 5)", ["positional call"]),
        ("f(1, 2, 3, 4, five=5)", []),
        (f"x = '{'a' * 100}'", ["long line"]),
        ("class A: ...\nB = A()\nC: A = A()", ["constant below a class"]),
        ("B = 1\nclass A: ...\na = A()", []),
    ],
)
def test_a_habit_is_found_where_it_is(source: str, habits: list[str]) -> None:
    assert [place.habit for place in places(source)] == habits


def test_lines_of_code_are_neither_blank_nor_comments_nor_docstrings() -> None:
    assert lines_of_code('"""Docstring\nof two lines."""\n\n# comment\nx = f(\n    1,\n)\n') == 3


def test_a_budget_is_lowered_and_never_raised() -> None:
    budget = lowered({"walrus": 3, "lambda": 1}, Counter({"walrus": 2, "lambda": 5}))
    assert budget["walrus"] == 2
    assert budget["lambda"] == 1
