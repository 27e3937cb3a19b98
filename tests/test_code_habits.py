"""The habits that scripts/code_habits.py counts."""

import json
from collections import Counter
from pathlib import Path

import pytest

from scripts import code_habits
from scripts.code_habits import (
    BUDGETS_FILE,
    FOLDERS,
    GOALS,
    TEST_FOLDERS,
    check,
    goals_of,
    lines_of_code,
    lowered,
    places,
)


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
        (
            "class A(Base):\n    @abstractmethod\n    def f(self): ...",
            ["abstract method outside an ABC"],
        ),
        ("class A(Base, ABC):\n    @abstractmethod\n    def f(self): ...", []),
    ],
)
def test_example_of_each_code_habit_is_reported_as_that_habit(
    source: str, habits: list[str]
) -> None:
    assert [place.habit for place in places(source)] == habits


def test_code_lines_exclude_blanks_comments_and_docstrings() -> None:
    assert lines_of_code('"""Docstring\nof two lines."""\n\n# comment\nx = f(\n    1,\n)\n') == 3


def test_code_habit_budget_is_lowered_but_never_raised() -> None:
    budget = lowered({"walrus": 3, "lambda": 1}, Counter({"walrus": 2, "lambda": 5}))
    assert budget["walrus"] == 2
    assert budget["lambda"] == 1


def test_code_habit_goals_of_tests_are_twice_those_of_the_app() -> None:
    for folder in TEST_FOLDERS:
        goals = goals_of(folder)
        assert goals == {habit: 2 * goal for habit, goal in goals_of("app").items()}


def test_code_habit_budgets_cover_every_folder_and_every_habit() -> None:
    budgets = json.loads(BUDGETS_FILE.read_text("utf-8"))
    assert set(budgets) == set(FOLDERS)
    assert all(budget.keys() == GOALS.keys() for budget in budgets.values())


@pytest.mark.parametrize("folder", ["app", "tests", "benchmarks"])
def test_one_occurrence_above_the_budget_of_a_folder_is_reported(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "module.py").write_text("its = 1\nown = 2\n")
    monkeypatch.setattr(code_habits, "ROOT", tmp_path)
    budget = dict.fromkeys(GOALS, 0)
    assert check(folder, budget | {"vague name": 2}) == []
    assert check(folder, budget | {"vague name": 1}) == [
        f"{folder}: 2 of vague name, above the budget of 1"
    ]


def test_a_folder_within_the_goal_may_exceed_its_budget(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "app").mkdir()
    monkeypatch.setattr(code_habits, "ROOT", tmp_path)
    budget = dict.fromkeys(GOALS, 0)
    other_lines = "value = 1\n" * 998
    (tmp_path / "app" / "module.py").write_text("its = 1\nown = 2\n" + other_lines)
    assert check("app", budget) == []
    (tmp_path / "app" / "module.py").write_text("its = 1\nown = 2\nat = 3\n" + other_lines)
    assert check("app", budget) == ["app: 3 of vague name, above the budget of 0"]
