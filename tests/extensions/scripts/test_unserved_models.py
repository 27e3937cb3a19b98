"""A server names the models of rules that it does not serve when it starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.core.settings import load
from app.extensions.scripts import Scripts
from app.extensions.scripts.script_set import check_scripts
from app.extensions.scripts.settings import ScriptSettings


def lines_of(
    monkeypatch: pytest.MonkeyPatch, script: Path, rules: list[dict[str, Any]], *flags: str
) -> list[str]:
    """The lines at the start of a server with these rules."""
    script.write_text(json.dumps({"rules": rules}))
    settings = load(flags or ["--script", str(script)], {})
    monkeypatch.setattr(Scripts, "scripts", check_scripts(settings.section(ScriptSettings)))
    return list(Scripts.startup_lines(settings))


def rule(model: object = None) -> dict[str, Any]:
    when = {} if model is None else {"model": model}
    return {"when": when, "then": {"text": "A"}}


def test_rules_for_models_that_are_not_served_are_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "s.yaml"
    rules = [
        rule("gpt-4o"),
        rule(["a", "b\nc"]),
        rule("gpt-4o"),
        rule("m"),
        rule(["m", "x"]),
        rule(),
    ]
    flags = ("--script", str(script), "--served-model-name", "m")
    assert lines_of(monkeypatch, script, rules, *flags) == [
        "scripts: 3 of the rules are for models that this server does not serve: gpt-4o, a, b c"
        " (served: m; add names with --served-model-name)"
    ]


def test_long_list_of_models_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [rule(f"model-{number}") for number in range(12)]
    [line] = lines_of(monkeypatch, tmp_path / "s.yaml", rules)
    assert "model-9, and 2 more (served: " in line


@pytest.mark.parametrize(
    "flags",
    [
        ("--served-model-name", "m", "gpt-4o"),
        ("--served-model-name", "*"),
        ("--served-model-name", "m", "--enable-lora", "--lora-modules", "gpt-4o=/x"),
    ],
)
def test_served_names_adapters_and_any_name_need_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    script = tmp_path / "s.yaml"
    rules = [rule("gpt-4o"), rule()]
    assert lines_of(monkeypatch, script, rules, "--script", str(script), *flags) == []


def test_script_for_a_model_that_is_not_served_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "s.yaml"
    flags = ("--script", f"other={script}", "--served-model-name", "m")
    [line] = lines_of(monkeypatch, script, [rule()], *flags)
    assert "1 of the rules are for models that this server does not serve: other" in line


def test_server_without_scripts_has_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripts, "scripts", {})
    assert list(Scripts.startup_lines(load([], {}))) == []
