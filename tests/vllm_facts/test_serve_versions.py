"""Options of `serve` that only some of the supported versions of vLLM have."""

from pathlib import Path

import pytest

from app.core.api.chat.prompt import chat_options
from app.core.api.chat.rules import ChatRules
from app.core.protocol.chat import ChatCompletionRequest
from app.core.settings import settings_type
from config.declaration import ConfigError, UsageError
from config.flag_words import short_forms
from tests.vllm_facts.test_serve import served
from vllm_facts.facts import OPTIONS
from vllm_facts.serve import settings_of
from vllm_facts.version import DESCRIBED, PATCHES

LATER = {name: option.since for name, option in OPTIONS.items() if option.since}
WORDS = {
    "monokernel": ["--monokernel"],
    "reasoning-effort-map": ["--reasoning-effort-map", '{"medium": "low"}'],
    "sleep-mode-backend": ["--sleep-mode-backend", "cumem"],
    "watchdog-config": ["--watchdog-config.timeout", "60"],
}


def test_every_version_that_changes_an_option_is_a_supported_vllm_version() -> None:
    later_versions = set(DESCRIBED[1:])
    changes = {
        name: {option.since, *option.later.values(), *option.gone.values()} - {""}
        for name, option in OPTIONS.items()
    }
    assert {
        name: changed_in for name, changed_in in changes.items() if not changed_in <= later_versions
    } == {}


def refusal(*argv: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        settings_of(["model", *argv], environ or {}, settings_type())
    return str(caught.value)


@pytest.mark.parametrize("name", LATER)
def test_error_for_a_later_option_names_the_vllm_version_that_has_it(
    name: str,
) -> None:
    since = LATER[name]
    text = refusal(*WORDS[name])
    assert text == f"flag --{name} requires vLLM {since} (--vllm-version {since})"
    settings_of(["model", "--vllm-version", since, *WORDS[name]], {}, settings_type())


def test_vllm_version_can_be_set_in_the_config_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text('vllm-version: "0.33"\nmonokernel: true\n')
    settings_of(["model", "--config", str(file)], {}, settings_type())
    assert "--monokernel" in refusal("--config", str(file), "--vllm-version", "0.32")
    environ = {"SIM_VLLM_VERSION": "0.33"}
    settings_of(["model", "--monokernel"], environ, settings_type())


def test_option_abbreviation_can_be_ambiguous_in_a_later_version() -> None:
    settings_of(["model", "--sleep-mode"], {}, settings_type())
    with pytest.raises(UsageError, match="ambiguous"):
        settings_of(["model", "--vllm-version", "0.33", "--sleep-mode"], {}, settings_type())


@pytest.mark.parametrize("flag", ["--vl", "--vllm-vers", "--vllm_version", "--vllm_v"])
def test_abbreviated_version_flag_selects_the_options_of_that_version(
    flag: str, tmp_path: Path
) -> None:
    assert served("model", flag, "0.33", "--monokernel").api.vllm_version == "0.33"
    assert served("model", f"{flag}=0.33", "--monokernel").api.vllm_version == "0.33"
    file = tmp_path / "serve.yaml"
    file.write_text(f'{flag.removeprefix("--")}: "0.33"\nmonokernel: true\n')
    assert served("model", "--config", str(file)).api.vllm_version == "0.33"


def test_ambiguous_abbreviation_of_the_version_flag_selects_no_version() -> None:
    assert "--monokernel" in refusal("--v", "3", "--monokernel")
    assert short_forms("--abc", ["--abc", "--abd", "--x"]) == ("--abc",)
    assert short_forms("--abc", ["--abc", "--abcd"]) == ("--abc",)
    assert short_forms("--abc", ["--x"]) == ("--abc", "--a", "--ab")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tool-call-parser", "step5"),
        ("reasoning-parser", "muse"),
        ("kv-cache-dtype", "octave_k3v4"),
        ("gdn-prefill-backend", "sycl"),
        ("tool-strict-level", "None"),
        ("attention-backend", "rocm_octave"),
    ],
)
def test_error_for_a_later_option_value_names_the_vllm_version(name: str, value: str) -> None:
    text = refusal(f"--{name}", value)
    assert "must be one of" in text and "vLLM 0.33 knows it" in text
    settings_of(["model", "--vllm-version", "0.33", f"--{name}", value], {}, settings_type())


def test_none_is_accepted_as_the_reasoning_parser_only_from_version_0_33() -> None:
    assert "vLLM 0.33 knows it" in refusal("--reasoning-parser", "none")
    line = ("--vllm-version", "0.33", "--reasoning-parser")
    for name in ("none", "None"):
        assert served("model", *line, name).reply.reasoning_parser == ""
    assert served("model", *line, "qwen3").reply.reasoning_parser == "qwen3"


def test_option_value_is_rejected_from_the_version_that_removed_it() -> None:
    settings_of(["model", "--spec-method", "medusa"], {}, settings_type())
    text = refusal("--vllm-version", "0.33", "--spec-method", "medusa")
    assert "must be one of" in text and "step5_mtp" in text


def test_reasoning_effort_map_changes_the_effort_passed_to_the_template() -> None:
    line = ("--vllm-version", "0.33", "--reasoning-effort-map", '{"medium": "low", "max": "none"}')
    rules = ChatRules.of(served("model", *line).api)
    messages = [{"role": "user", "content": "Hi"}]
    seen = {}
    for effort in ("medium", "max", "high"):
        chat = ChatCompletionRequest(messages=messages, reasoning_effort=effort)  # type: ignore[arg-type]
        kwargs = chat_options(chat, rules).chat_template_kwargs or {}
        seen[effort] = kwargs["reasoning_effort"], kwargs["enable_thinking"]
    assert seen == {"medium": ("low", True), "max": ("none", False), "high": ("high", True)}


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ('{"medium": 1}', "the value of medium is not a string"),
        ('{"some": "low"}', "the effort must be one of "),
        ("[]", "must be a JSON object"),
    ],
)
def test_invalid_reasoning_effort_map_prevents_startup(text: str, flaw: str) -> None:
    with pytest.raises(ConfigError, match=flaw):
        served("model", "--vllm-version", "0.33", "--reasoning-effort-map", text)


@pytest.mark.parametrize("version", PATCHES)
def test_request_bodies_have_the_limit_of_the_rust_front_end_in_all_versions(version: str) -> None:
    # vLLM's Python front end ignores the variable, and has no limit.
    environ = {"VLLM_HTTP_MAX_REQUEST_BODY_SIZE": "99"}
    settings = served("model", "--vllm-version", version, environ=environ)
    assert settings.server.max_request_body_size_mb == 32
