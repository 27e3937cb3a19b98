"""What several plugins do together, and how one that cannot be used stops the start, in this
process.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.core.application import build, tokenizer_of
from app.core.built_in import enabled_extensions
from app.plugins import HOOKS
from config import ConfigError, Settings
from config.loader import load
from config.vllm import serve
from tests.application import app_of
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
    answer = app_of(*flags).test_client().post("/v1/chat/completions", json=body).json
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
            (
                "urgent",
                SAYING.format(text="urgent").replace("@hookimpl", "@hookimpl(tryfirst=True)"),
            ),
        )
    ]
    for flags, expected in (
        (paths[:3], "first"),
        (paths, "urgent"),
        (paths[2:3] + paths[:2], "second"),
    ):
        assert answered("--plugin", *flags)["message"]["content"] == expected


def test_a_script_has_its_say_before_a_plugin(plugin: Write, tmp_path: Path) -> None:
    script = tmp_path / "rules.yaml"
    script.write_text(
        "rules:\n- when: {message: {contains: scripted}}\n  then: {text: by the script}\n"
    )
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
    flags = serve.settings_of(words, {})
    assert flags.values["mine-size"] == "8" and flags.values["max-num-seqs"] == "3"


def test_a_server_without_plugins_says_so() -> None:
    answer = app_of("--no-installed-plugins").test_client().get("/admin/plugins")
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


SECTION = """
from typing import Annotated
class Settings(Section, frozen=True, kw_only=True):
    '''Of a test.'''
"""


def own(field: str = "a", default: int = 1, more: str = "") -> str:
    return f"{SECTION}    {field}: Annotated[Count, About('A.'{more})] = {default}\n"


def gives(hook: str, value: str) -> str:
    return f"@hookimpl\ndef {hook}(host):\n    return {value}\n"


REPLY = gives("reply", "lambda request, rng: 'Hi'")


def refusal(*flags: str, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        started(*flags, environ=environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def started(*flags: str, environ: Mapping[str, str] | None = None) -> Settings:
    settings = load(flags, environ or {})
    build(settings, tokenizer_of(settings), enabled_extensions(settings), rank=0)
    return settings


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero (line 3 of {path})"),
        ("def f(:", "cannot be imported: SyntaxError: "),
        ("API = 2", "is written for API 2; this server has API 1"),
        ("Settings = 3", "its Settings must be a config.declaration.Section"),
        (
            SECTION + "    a: Annotated[int, About('A.')]",
            "its Settings: TypeError: Missing required",
        ),
        (own() + "NAME = 'server'", "this name is taken"),
        (own(default=0), "its Settings: ValidationError: Expected `int` >= 1"),
        (own("num_seqs") + "NAME = 'max'", "setting max-num-seqs is there already"),
        (own(more=", env=('SIM_PORT',)"), "setting SIM_PORT is there already"),
        ("", "has no hooks: no function of it is marked with @hookimpl"),
        (REPLY.replace("reply", "repply"), "unknown hook 'repply'; did you mean reply?"),
        (REPLY.replace("(host)", "(host, model)"), "Argument(s) {'model'} are declared"),
        (
            "@hookimpl(wrapper=True)\ndef reply(host):\n    yield",
            "hook reply: wrappers are not called",
        ),
        (gives("reply", "{}['key']"), "hook reply failed at the start: KeyError: 'key'"),
        (gives("routes", "[1]"), "hook routes failed at the start: AttributeError: "),
        (
            gives("middleware", "3"),
            "hook middleware failed at the start: TypeError: gave int, not Middleware",
        ),
        (gives("routes", "[get('/health', print)]"), "route GET /health is there already"),
        (
            gives("routes", "[get('/v1/responses/{a}', print)]"),
            "route GET /v1/responses/{a} is there already",
        ),
        (gives("routes", "[get('x', print)]"), "path 'x' must begin with a slash"),
    ],
)
def test_a_plugin_that_makes_no_sense_is_named(plugin: Write, text: str, line: str) -> None:
    path = plugin(text)
    told = refusal("--plugin", path)
    assert told.startswith("plugin ") and path in told or "plugin mine: " in told
    assert line.replace("{path}", path) in told


def test_two_plugins_of_one_name_are_refused(plugin: Write, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    one, other = plugin(REPLY), plugin(REPLY, "sub/mine")
    assert refusal("--plugin", one, "--plugin", other) == (
        f"plugin mine: two have this name, {one} and {other}"
    )


def test_a_name_that_is_no_flag_is_refused(plugin: Write) -> None:
    assert "a name is made of a-z, digits and single dashes" in refusal(
        "--plugin", plugin(REPLY, "my plug")
    )


def test_a_module_or_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refusal("--plugin", "no.such.module").startswith(
        "plugin module (no.such.module): cannot be imported: ModuleNotFoundError"
    )
    missing = str(tmp_path / "missing.py")
    assert refusal("--plugin", missing).startswith(
        f"plugin missing ({missing}): cannot be imported: FileNotFoundError"
    )


def test_values_of_its_settings_are_checked_as_all_others(plugin: Write) -> None:
    path = plugin(own("size", 4) + REPLY)
    assert started("--plugin", path, "--mine-size", "7").dump()["mine-size"] == 7
    assert refusal("--plugin", path, "--mine-size", "0") == (
        "setting mine-size: '0' (flag --mine-size) must be at least 1"
    )
    assert refusal("--plugin", path, environ={"SIM_MINE_SIZE": "x"}) == (
        "setting mine-size: 'x' (environment variable SIM_MINE_SIZE) "
        "must be a whole number (of at most 64 bits)"
    )
    assert refusal("--plugin", path, "--mine-sise", "1") == (
        "unknown flag --mine-sise; did you mean --mine-size?"
    )
    assert refusal("--mine-size", "1").startswith("unknown flag --mine-size")


def test_a_yaml_file_may_name_plugins_and_their_settings(plugin: Write, tmp_path: Path) -> None:
    path = plugin(own("size", 4) + REPLY)
    file = tmp_path / "settings.yaml"
    file.write_text(f"plugin: [{path}]\nmine-size: 9\n")
    assert started("--config", str(file)).dump()["mine-size"] == 9
    assert started("--config", str(file), "--mine-size", "3").dump()["mine-size"] == 3
    assert started(environ={"SIM_CONFIG": str(file), "SIM_MINE_SIZE": "5"}).dump()["mine-size"] == 5
    file.write_text("mine-size: 9\n")
    assert refusal("--config", str(file)).endswith("unknown key 'mine-size'")
