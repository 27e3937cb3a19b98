"""Plugins across processes: reloads, ranks, vLLM's command line, and what several plugins do together."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.plugins.hooks import HOOKS
from app.wiring.factory import create_app
from config.loader import load
from config.vllm import command_line, meanings
from tests.running_server import ROOT

Write = Callable[..., str]
SAYING = """
@hookimpl
def reply(host):
    host.rng.random()
    return lambda request, rng: {text!r}
"""


def answered(*flags: str, text: str = "Hi") -> dict[str, Any]:
    """The choice that an application of these flags, in this process, gives."""
    body = {"messages": [{"role": "user", "content": text}]}
    answer = create_app(load(flags, {})).test_client().post("/v1/chat/completions", json=body).json
    choice: dict[str, Any] = answer["choices"][0]
    return choice


def test_the_first_plugin_that_has_a_reply_is_believed(plugin: Write) -> None:
    nothing = "@hookimpl\ndef reply(host):\n    return lambda request, rng: None\n"
    paths = [
        plugin(text, name)
        for name, text in (
            ("nothing", nothing),
            ("first", SAYING.format(text="first")),
            ("second", SAYING.format(text="second")),
            ("urgent", SAYING.format(text="urgent").replace("@hookimpl", "@hookimpl(tryfirst=True)")),
        )
    ]
    for flags, expected in ((paths[:3], "first"), (paths, "urgent"), (paths[2:3] + paths[:2], "second")):
        assert answered("--plugin", *flags)["message"]["content"] == expected


def test_a_script_has_its_say_before_a_plugin(plugin: Write, tmp_path: Path) -> None:
    script = tmp_path / "rules.yaml"
    script.write_text("rules:\n- when: {message: {contains: scripted}}\n  then: {text: by the script}\n")
    flags = ["--plugin", plugin(SAYING.format(text="by the plugin")), "--script", str(script)]
    for text, expected in (("scripted", "by the script"), ("else", "by the plugin")):
        assert answered(*flags, text=text)["message"]["content"] == expected


def test_thoughts_and_calls_of_a_plugin_are_told_apart(plugin: Write) -> None:
    path = plugin(
        "@hookimpl\ndef reply(host):\n"
        "    return lambda request, rng: ScriptedReply("
        "reasoning='Hm.', text='Look:', calls=(('f', '{\"a\": 1}'),))\n"
    )
    choice = answered("--plugin", path)
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("Hm.", "Look:")
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert choice["finish_reason"] == "tool_calls"


def test_vllms_command_line_takes_plugins_with_their_settings(plugin: Write) -> None:
    path = plugin(
        "from typing import Annotated\n"
        "class Settings(Section, frozen=True, kw_only=True):\n    '''Own.'''\n"
        "    size: Annotated[Count, About('A size.')] = 4\n" + SAYING.format(text="x")
    )
    words = ["some/model", "--plugin", path, "--mine-size", "8", "--max-num-seqs", "3"]
    flags = meanings.settings_of(command_line.read(words))
    assert flags.values["mine-size"] == "8" and flags.values["max-num-seqs"] == "3"


def test_a_server_without_plugins_says_so() -> None:
    answer = create_app(load(["--no-installed-plugins"], {})).test_client().get("/admin/plugins")
    assert answer.json == {"api": 1, "plugins": []}


PAGE = (ROOT / "docs" / "plugins.md").read_text("utf-8")


def test_the_plugin_of_the_page_works(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "shout.py"
    path.write_text(code)
    assert answered("--plugin", str(path), text="Hello")["message"]["content"] == "HELLO"
    quiet = answered("--plugin", str(path), "--shout-share", "0", text="Hello")
    assert quiet["message"]["content"] != "HELLO"
    assert [name for name in HOOKS if f"| `{name}(host" not in PAGE] == []
