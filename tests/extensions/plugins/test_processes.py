"""What several plugins do together, and how one that cannot be used stops the start, in this
process.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.core.application import tokenizer_of
from app.core.assembly.server import build
from app.core.built_in import enabled_extensions
from app.core.settings import load, settings_type
from app.extensions.plugins.registry import HOOKS
from config import ConfigError, Settings
from config.validation import LiveSettings
from tests.application import app_of
from tests.present import is_present
from tests.running_server import ROOT
from vllm_facts import serve

Write = Callable[..., str]
SAYING = """
def reply(self):
    self.rng.random()
    return lambda request, rng: {text!r}
"""


def answered(*flags: str, text: str = "Hi") -> dict[str, Any]:
    """The choice that an application of these flags, in this process, gives."""
    body = {"messages": [{"role": "user", "content": text}]}
    answer = app_of(*flags).test_client().post("/v1/chat/completions", json=body).json
    choice: dict[str, Any] = answer["choices"][0]
    return choice


def test_first_plugin_that_returns_a_reply_determines_the_reply(plugin: Write) -> None:
    silent = plugin("def reply(self):\n    return lambda request, rng: None\n", "silent")
    first = plugin(SAYING.format(text="first"), "first")
    second = plugin(SAYING.format(text="second"), "second")
    for paths, expected in (([silent, first, second], "first"), ([second, silent], "second")):
        assert answered("--plugin", *paths)["message"]["content"] == expected


def test_plugin_reply_may_contain_reasoning_and_tool_calls(plugin: Write) -> None:
    path = plugin(
        "def reply(self):\n"
        "    return lambda request, rng: ScriptedReply("
        "reasoning='Hm.', text='Look:', calls=(('f', '{\"a\": 1}'),))\n"
    )
    choice = answered("--plugin", path)
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("Hm.", "Look:")
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert choice["finish_reason"] == "tool_calls"


def test_serve_command_accepts_plugins_and_their_settings(plugin: Write) -> None:
    path = plugin(
        f"Settings = TestSettings\n{SAYING.format(text='x')}", preamble=settings_class("size", 4)
    )
    words = ["some/model", "--plugin", path, "--mine-size", "8", "--max-num-seqs", "3"]
    flags = serve.settings_of(words, {}, settings_type())
    assert flags.values["mine-size"] == "8" and flags.values["max-num-seqs"] == "3"


def test_flag_with_one_dash_is_no_plugin(plugin: Write) -> None:
    words = ["some/model", "--plugin", plugin(REPLY), "-tp", "2"]
    assert serve.settings_of(words, {}, settings_type()).values["tensor-parallel-size"] == "2"


def test_plugins_route_returns_an_empty_list_if_no_plugin_is_loaded() -> None:
    answer = app_of("--no-installed-plugins").test_client().get("/admin/plugins")
    assert answer.json == {"api": 2, "plugins": []}


PAGE = (ROOT / "docs" / "plugins.md").read_text("utf-8")


def test_documented_example_plugin_replies_with_the_prompt_in_capitals(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "shout.py"
    path.write_text(code)
    assert answered("--plugin", str(path), text="Hello")["message"]["content"] == "HELLO"
    quiet = answered("--plugin", str(path), "--shout-share", "0", text="Hello")
    assert quiet["message"]["content"] != "HELLO"
    assert [name for name in HOOKS if f"| `{name}(" not in PAGE] == []


SECTION = """
from typing import Annotated
class TestSettings(Section, frozen=True, kw_only=True):
    '''Of a test.'''
"""


def settings_class(field: str = "a", default: int = 1, options: str = "") -> str:
    """The text of a section of settings with one setting."""
    return f"{SECTION}    {field}: Annotated[Count, About('A.'{options})] = {default}\n"


def hook(name: str, value: str, arguments: str = "self") -> str:
    return f"def {name}({arguments}):\n    return {value}\n"


REPLY = hook("reply", "lambda request, rng: 'Hi'")


def refusal(*flags: str, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        started(*flags, environ=environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def started(*flags: str, environ: Mapping[str, str] | None = None) -> Settings:
    settings = load(flags, environ or {})
    live = LiveSettings(settings)
    build(live, tokenizer_of(settings), enabled_extensions(settings), rank=0)
    return settings


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1 / 0", " cannot be imported: ZeroDivisionError: division by zero (line 1 of {path})"),
        ("def f(:", " cannot be imported: SyntaxError: "),
        ("API = 1", " is written for API 1; this server supports API 2 (see docs/plugins.md)"),
        ("", " does not name its API; this server supports API 2 (see docs/plugins.md)"),
        ("API = 2", " does not define EXTENSION, a subclass of app.plugins.Plugin"),
        (
            "API = 2\nclass EXTENSION:\n    name = 'mine'",
            ": EXTENSION must be a subclass of app.plugins.Plugin",
        ),
    ],
)
def test_module_without_a_plugin_is_rejected(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    message = refusal("--plugin", str(path))
    assert message.startswith(f"plugin mine ({path}){line.replace('{path}', str(path))}")


OWN_SETTINGS = "Settings = TestSettings"


@pytest.mark.parametrize(
    ("body", "preamble", "line"),
    [
        ("Settings = 3", "", "the Settings class must be a subclass of config.declaration.Section"),
        (
            OWN_SETTINGS,
            SECTION + "    a: Annotated[int, About('A.')]",
            "the Settings class is invalid: TypeError: Missing required",
        ),
        (
            OWN_SETTINGS,
            settings_class(default=0),
            "the Settings class is invalid: ValidationError: Expected `int` >= 1",
        ),
        (
            OWN_SETTINGS,
            settings_class(options=", env=('SIM_PORT',)"),
            "the setting SIM_PORT already exists",
        ),
        ("", "", "TestPlugin does not override any hook"),
        (hook("reply", "{}['key']"), "", "hook reply failed at startup: KeyError: 'key'"),
        (
            hook("reply", "None", "self, model"),
            "",
            "hook reply failed at startup: TypeError: ",
        ),
        (hook("__init__", "1 / 0", "self, parts") + REPLY, "", "hook __init__ failed at startup"),
        (
            hook("routes", "{'mine': [1]}"),
            "",
            "hook routes failed at startup: AttributeError: ",
        ),
        (
            hook("middleware", "{Position.INNERMOST: [3]}"),
            "",
            "hook middleware failed at startup: TypeError: returned int, not Middleware",
        ),
        (
            hook("routes", "{'mine': [get('/health', print)]}"),
            "",
            "the route GET /health already exists",
        ),
        (
            hook("routes", "{'mine': [get('x', print)]}"),
            "",
            "path 'x' must begin with a slash",
        ),
    ],
)
def test_error_for_an_unusable_plugin_states_the_problem(
    plugin: Write, body: str, preamble: str, line: str
) -> None:
    path = plugin(body, preamble=preamble)
    message = refusal("--plugin", path)
    assert message.startswith(("plugin mine: ", f"plugin mine ({path}): "))
    assert line in message


if is_present("adapters"):  # it has a route with a variable

    def test_plugin_route_that_differs_only_in_a_variable_name_is_rejected(
        plugin: Write,
    ) -> None:
        route = "Route(methods=('DELETE',), path='/adapters/{a}', handle=print)"
        path = plugin(hook("routes", f"{{'mine': [{route}]}}"))
        message = refusal("--plugin", path, "--allow-runtime-lora-updating")
        assert message == "plugin mine: the route DELETE /adapters/{a} already exists"


def test_plugin_with_the_name_of_a_section_or_setting_in_use_is_rejected(plugin: Write) -> None:
    server = plugin(REPLY, "server")
    assert refusal("--plugin", server).endswith("this name is already in use")
    other = plugin(OWN_SETTINGS, "max", preamble=settings_class("num_seqs"))
    assert refusal("--plugin", other).endswith("the setting max-num-seqs already exists")


def test_two_plugins_with_the_same_name_are_rejected(plugin: Write, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    first = plugin(REPLY)
    other = plugin(REPLY, file="sub/mine")
    assert refusal("--plugin", first, "--plugin", other) == (
        f"plugin mine: two plugins use this name: {first} and {other}"
    )


def test_plugin_name_that_is_not_a_valid_flag_is_rejected(plugin: Write) -> None:
    assert "a name can contain only a-z, digits, and single dashes" in refusal(
        "--plugin", plugin(REPLY, "my plug")
    )


def test_error_for_a_missing_plugin_names_the_module_or_file(tmp_path: Path) -> None:
    assert refusal("--plugin", "no.such.module").startswith(
        "plugin module (no.such.module) cannot be imported: ModuleNotFoundError"
    )
    missing = str(tmp_path / "missing.py")
    assert refusal("--plugin", missing).startswith(
        f"plugin missing ({missing}) cannot be imported: FileNotFoundError"
    )


def test_plugin_settings_are_validated_like_built_in_settings(plugin: Write) -> None:
    path = plugin(f"{OWN_SETTINGS}\n{REPLY}", preamble=settings_class("size", 4))
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


def test_yaml_file_may_contain_plugins_and_their_settings(plugin: Write, tmp_path: Path) -> None:
    path = plugin(f"{OWN_SETTINGS}\n{REPLY}", preamble=settings_class("size", 4))
    file = tmp_path / "settings.yaml"
    file.write_text(f"plugin: [{path}]\nmine-size: 9\n")
    assert started("--config", str(file)).dump()["mine-size"] == 9
    assert started("--config", str(file), "--mine-size", "3").dump()["mine-size"] == 3
    assert started(environ={"SIM_CONFIG": str(file), "SIM_MINE_SIZE": "5"}).dump()["mine-size"] == 5
    file.write_text("mine-size: 9\n")
    assert refusal("--config", str(file)).endswith("unknown key 'mine-size'")
