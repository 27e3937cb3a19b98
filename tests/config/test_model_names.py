"""Names of models and adapters reach the settings unchanged, in every form of the command line."""

import pytest

from app.core.settings import load, resolve, settings_type
from config import Settings
from config.vllm.image import words_of
from config.vllm.serve import settings_of

COMMANDS = ("serve", "plugins")
MODEL_NAMES = (
    "mistralai/Mistral-7B-Instruct-v0.3",
    "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "lmsys/vicuna-7b-v1.5",
    "HuggingFaceH4/zephyr-7b-beta",
    "Salesforce/xgen-mm-phi3-mini-instruct-r-v1",
    "nvidia/Llama-3_1-Nemotron-Ultra-253B-v1",
    "nomic-ai/nomic-embed-text-v1.5",
    "BAAI/bge-large-en-v1.5",
    "deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct",
    "deepseek-ai/deepseek-llm-7b-base-v2",
    "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "Qwen/Qwen2.5-VL-7B-Instruct",
    "meta-llama/Llama-3.1-8B-Instruct",
    "microsoft/phi-2",
    "google/gemma-3-27b-it",
    "ibm-granite/granite-embedding-278m-multilingual",
    "openai/gpt-oss-120b",
    "intfloat/e5-mistral-7b-instruct",
    "jinaai/jina-embeddings-v2-base-en",
    "upstage/SOLAR-10.7B-Instruct-v1.0",
    "team_a/sql-O3-v2",
    "mixtral-v2",
)


def loaded(*argv: str) -> Settings:
    return load(argv, {}, warn=pytest.fail)


def served(*argv: str) -> Settings:
    return resolve(settings_of(argv, {}, settings_type()), {}, warn=pytest.fail)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_every_spelling_of_the_model_option_keeps_the_model_name_unchanged(name: str) -> None:
    assert loaded("--model", name).model.served_names == (name,)
    assert loaded(f"--model={name}").model.served_names == (name,)
    assert served(name).model.served_names == (name,)
    assert served("--port", "1", name).model.served_names == (name,)
    assert served("--model", name).model.served_names == (name,)
    assert served(f"--model={name}").model.served_names == (name,)
    image_words = words_of([f"--model={name}", "--port", "1"], COMMANDS)
    assert image_words is not None
    assert served(*image_words[1:]).model.served_names == (name,)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_served_name_and_adapter_values_are_kept_unchanged(name: str) -> None:
    adapter = f"{name}=/adapters/{name}"
    for read in (loaded, served):
        joined = read("--model=m", f"--served-model-name={name}", f"--lora-modules={adapter}")
        assert joined.model.served_names == (name,)
        assert joined.lora.lora_modules == (adapter,)
        names = ("--served-model-name", "first-v1", name)
        apart = read("--model=m", *names, "--lora-modules", adapter)
        assert apart.model.served_names == ("first-v1", name)
        assert apart.lora.lora_modules == (adapter,)


def test_short_flag_may_be_joined_to_its_value() -> None:
    assert loaded("-v5").log.log_level == "trace"
    assert loaded("--served-model-name", "a-v1", "b-v2", "-v4").model.served_names == (
        "a-v1",
        "b-v2",
    )
    assert settings_of(["model-v2", "-O3"], {}, settings_type()).values["model"] == "model-v2"


# Empty words


def test_empty_arguments_are_ignored() -> None:
    assert loaded("", "--port", "8123", "", "--log-http", "").server.port == 8123
    settings = served("", "model", "", "--port", "8123", "", "--no-enable-prefix-caching", "")
    assert (settings.model.model, settings.server.port) == ("model", 8123)
    assert not settings.kvcache.enable_kvcache
    assert served("--enable-prefix-caching", "", "model").model.model == "model"


def test_empty_argument_after_a_boolean_flag_leaves_the_flag_on() -> None:
    assert loaded("--log-http", "", "--port", "1").log.log_http
    assert served("model", "--log-http", "").log.log_http


def test_empty_items_are_dropped_from_list_flags() -> None:
    for read in (loaded, served):
        names = ("--served-model-name", "a", "", "b", "")
        settings = read("--model=m", *names, "--lora-modules", "")
        assert settings.model.served_names == ("a", "b")
        assert settings.lora.lora_modules == ()


def test_empty_flag_value_clears_the_value_of_its_environment_variable() -> None:
    environ = {"SIM_API_KEY": "secret", "SIM_POD_NAME": "pod", "SIM_MAX_NUM_QUEUED_REQS": "4"}
    argv = ("--api-key", "", "--pod-name", "", "--max-num-queued-reqs", "", "--port", "8123")
    settings = load(argv, environ, warn=pytest.fail)
    assert settings.access.api_key == ()
    assert settings.server.pod_name == ""
    assert settings.server.port == 8123
    assert load(argv[4:], environ, warn=pytest.fail).access.api_key == ("secret",)
    in_serve = resolve(
        settings_of(("model", *argv), environ, settings_type()), environ, warn=pytest.fail
    )
    assert in_serve.access.api_key == ()
    assert in_serve.server.port == 8123


def test_container_image_ignores_empty_arguments_before_the_command() -> None:
    assert words_of(["", "serve", "model"], COMMANDS) == ["serve", "model"]
    assert words_of(["", "--model", "x", ""], COMMANDS) == ["serve", "--model", "x", ""]
    assert words_of(["vllm", "", "serve", "model"], COMMANDS) == ["serve", "model"]
