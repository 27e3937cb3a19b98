"""The model of `serve`: folders, names, the table of models, and pooling models."""

import json
import os
from pathlib import Path

import pytest

from app.core.application import create_app
from app.core.settings import resolve, settings_type
from config import ConfigError, Settings
from config.declaration import UsageError
from config.sources import Flags, ignore_warning
from vllm_facts.models import find_model, read_rows
from vllm_facts.serve import settings_of

SEQUENCE_CLASSIFIER = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "classifier_from_token": ["no", "yes"],
}


def flags(*argv: str) -> Flags:
    return settings_of(argv, {}, settings_type())


def served(*argv: str) -> Settings:
    return resolve(flags(*argv), {}, ignore_warning)


def client(*argv: str):
    return create_app(served(*argv, "--force-dummy-tokenizer")).test_client()


def folder(path: Path, config: dict[str, object], **files: object) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return str(path)


# Pooling models; tests/extensions/pooling starts those that have a name


@pytest.mark.parametrize(
    ("architecture", "labels", "task"),
    [
        ("LlamaForCausalLM", 0, ""),
        ("Qwen2VLForConditionalGeneration", 0, ""),
        ("ChatGLMModel", 0, ""),
        ("GPT2LMHeadModel", 0, ""),
        ("BertModel", 0, "embed"),
        ("RobertaForMaskedLM", 0, "embed"),
        ("BertForMaskedLM", 0, "token_classify"),
        ("XLMRobertaForSequenceClassification", 1, "score"),
        ("Qwen3ForSequenceClassification", 3, "classify"),
        ("JinaVLForRanking", 0, "score"),
        ("BertForTokenClassification", 9, "token_classify"),
        ("Qwen2ForProcessRewardModel", 2, "token_classify"),
    ],
)
def test_architecture_of_a_folder_decides_the_task(
    tmp_path: Path, architecture: str, labels: int, task: str
) -> None:
    config = {"architectures": [architecture], "num_labels": labels}
    model = served(folder(tmp_path, config)).model
    assert model.task == (task or "generate")


def test_folder_of_an_embedding_model_has_the_sizes_of_its_files(tmp_path: Path) -> None:
    config = {
        "architectures": ["XLMRobertaModel"],
        "hidden_size": 48,
        "max_position_embeddings": 514,
        "pad_token_id": 1,
    }
    model = served(folder(tmp_path / "a", config)).model
    assert (model.task, model.default_embedding_dimensions, model.max_model_len) == (
        *("embed", 48, 512),
    )


def test_folder_of_sentence_transformers_is_an_embedding_model(tmp_path: Path) -> None:
    config = {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 64}
    modules = [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]
    (tmp_path / "2_Dense").mkdir()
    (tmp_path / "2_Dense" / "config.json").write_text('{"out_features": 24}')
    files = {"modules": modules, "sentence_bert_config": {"max_seq_length": 100}}
    model = served(folder(tmp_path, config, **files)).model
    assert (model.task, model.default_embedding_dimensions, model.max_model_len) == (
        *("embed", 24, 100),
    )


def test_overrides_of_the_configuration_change_the_task(tmp_path: Path) -> None:
    overrides = json.dumps(SEQUENCE_CLASSIFIER)
    generator = folder(tmp_path, {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64})
    assert served(generator).model.task == "generate"
    assert served(generator, "--hf-overrides", overrides).model.task == "score"
    assert served("Qwen/Qwen3-0.6B", "--hf-overrides", overrides).model.task == "score"
    assert served("BAAI/bge-m3", "--runner", "pooling").model.task == "embed"
    model = served("Qwen/Qwen3-0.6B", "--runner", "pooling").model
    assert (model.task, model.default_embedding_dimensions) == ("embed", 1024)


@pytest.mark.parametrize(
    ("config", "overrides", "labels"),
    [
        ({}, {}, ("LABEL_0", "LABEL_1")),
        ({"num_labels": 3}, {}, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": {"10": "k", "2": "c", "0": "a"}}, {}, ("a", "c", "k")),
        ({"id2label": {"0": "a", "1": "b"}, "num_labels": 3}, {}, ("a", "b")),
        ({"id2label": {"0": "a", "1": "b"}}, {"num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": {"0": "a,b", "1": "c"}}, {}, ("a,b", "c")),
        ({"num_labels": 10**9}, {}, ("LABEL_0", "LABEL_1")),
        ({"num_labels": -1}, {}, ("LABEL_0", "LABEL_1")),
    ],
)
def test_classes_are_those_of_the_configuration(
    tmp_path: Path, config: dict[str, object], overrides: dict[str, object], labels: tuple[str, ...]
) -> None:
    classifier = folder(tmp_path, {"architectures": ["BertForSequenceClassification"], **config})
    model = served(classifier, "--hf-overrides", json.dumps(overrides)).model
    assert (model.task, model.class_labels) == ("classify", labels)


def test_tokens_of_a_classifier_decide_its_classes() -> None:
    tokens = {**SEQUENCE_CLASSIFIER, "method": "no_post_processing"}
    model = served("Qwen/Qwen3-0.6B", "--hf-overrides", json.dumps(tokens)).model
    assert (model.task, len(model.class_labels)) == ("classify", 2)
    model = served("Qwen/Qwen3-0.6B", "--convert", "classify").model
    assert (model.task, len(model.class_labels)) == ("classify", 2)
    one = ("--convert", "classify", "--hf-overrides", '{"num_labels": 1}')
    assert served("Qwen/Qwen3-0.6B", *one).model.task == "score"


def test_reranker_without_a_classifying_architecture_generates_text() -> None:
    name = "Qwen/Qwen3-Reranker-0.6B"
    assert served(name).model.task == "generate"
    assert "serves it as a generating model" in flags(name).model_warning
    embedder = served(name, "--runner", "pooling").model
    assert (embedder.task, embedder.default_embedding_dimensions) == ("embed", 1024)
    assert flags(name, "--runner", "pooling").model_warning == ""
    reranker = flags(name, "--hf-overrides", json.dumps(SEQUENCE_CLASSIFIER))
    assert reranker.model_warning == ""


# Folders and names


@pytest.mark.parametrize(
    "word", ["/none/here", "./none", "../none", "~/none-here", "~no-user-has-this-name/none"]
)
def test_missing_folder_ends_the_start(word: str) -> None:
    with pytest.raises(ConfigError, match="the folder does not exist") as caught:
        flags(word)
    assert caught.value.status == 1
    assert flags(word, "--skip-model-check").values["model"] == word


def test_folder_without_a_model_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    for word in ("docs", "./docs", str(tmp_path / "docs")):
        with pytest.raises(ConfigError, match=r"the folder has no config\.json"):
            flags(word)
        flags(word, "--skip-model-check")
    (tmp_path / "docs" / "config.json").write_text('{"max_position_embeddings": 64}')
    assert served("docs").model.max_model_len == 64


def test_unknown_name_starts_with_one_warning_about_what_is_assumed() -> None:
    assert flags("tiny").model_warning == (
        "model 'tiny' is not in the table of models; assumed: it generates text, its maximum length "
        "is 32,768 tokens, its sizes are those of no particular model"
    )
    assert "maximum length" not in flags("tiny", "--max-model-len", "64").model_warning
    assert flags("Qwen/Qwen3-0.6B").model_warning == ""
    assert flags("tiny").warnings == []


# The table


def test_table_has_the_models_that_people_run() -> None:
    models = read_rows()
    assert len(models) >= 300
    assert all(model.source for model in models.values())
    families = (
        *("Qwen3.5-", "Qwen3.6-", "Qwen3.8-", "GLM-4.5", "GLM-4.6", "GLM-4.7", "GLM-5", "Kimi-K2"),
        *("gemma-4-", "Qwen3-VL-", "gpt-oss-", "MiniMax-M2", "bge-", "DeepSeek-V3"),
    )
    for family in families:
        assert any(family in name for name in models), family


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("thenlper/gte-large", "embed"),
        ("BAAI/bge-code-v1", "embed"),
        ("cross-encoder/ms-marco-TinyBERT-L-2-v2", "score"),
    ],
)
def test_table_has_the_pooling_models_of_vllm_tests(name: str, task: str) -> None:
    assert served(name).model.task == task
    assert "it generates text" not in flags(name).model_warning


def test_parsers_are_those_of_recipes() -> None:
    models = read_rows()
    assert models["zai-org/GLM-4.7"].recipe.tool_parser == "glm47"
    assert models["openai/gpt-oss-120b"].recipe.tool_parser == "openai"
    assert models["BAAI/bge-m3"].recipe.tool_parser == ""


@pytest.mark.parametrize(
    "name", ["llama-3.3-70b", "Llama-3.3-70B-Instruct", "llama 3.3 70b", "LLAMA_3.3_70B_instruct"]
)
def test_short_name_finds_its_model(name: str) -> None:
    settings = served(name)
    assert settings.model.model == "meta-llama/Llama-3.3-70B-Instruct"
    assert settings.model.served_names == (name, "meta-llama/Llama-3.3-70B-Instruct")
    assert settings.model.max_model_len == 131_072


def test_short_name_of_two_models_is_an_error_that_names_both() -> None:
    with pytest.raises(UsageError) as caught:
        find_model("deepseek-vl2-tiny")
    assert "deepseek-ai/deepseek-vl2-tiny or Isotr0py/deepseek-vl2-tiny" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "base", "weights"),
    [
        ("someone/Qwen3-8B-AWQ", "Qwen/Qwen3-8B", "awq"),
        ("someone/Qwen3-8B-GPTQ-Int4", "Qwen/Qwen3-8B", "gptq"),
        ("someone/Qwen3-8B-FP8-dynamic", "Qwen/Qwen3-8B", "fp8"),
        ("someone/Qwen3-8B-quantized.w4a16", "Qwen/Qwen3-8B", "w4a16"),
        ("someone/gpt-oss-20b-NVFP4", "openai/gpt-oss-20b", "nvfp4"),
    ],
)
def test_name_of_a_repack_leads_to_its_base_and_format(name: str, base: str, weights: str) -> None:
    found = find_model(name)
    assert found is not None
    full_name, model = found
    assert (full_name, model.base, model.format) == (name, base, weights)
    assert model.max_model_len == read_rows()[base].facts().max_model_len


def test_override_of_the_number_of_blocks_is_a_label_of_the_metric() -> None:
    lines = client("m", "--num-gpu-blocks-override", "77").get("/metrics").text
    assert 'num_gpu_blocks="77",num_gpu_blocks_override="77"' in lines
    assert 'num_gpu_blocks_override="None"' in client("m").get("/metrics").text


@pytest.mark.parametrize(
    ("modules", "size"),
    [
        ([{"type": "models.Dense", "path": "1_Dense"}], "8"),
        ([{"type": "models.Dense", "path": "no\0file"}], "4"),
        ([{"type": "models.Dense", "path": "pipe"}], "4"),
        ([{"type": "models.Dense", "path": None}, 5, None], "4"),
        ({"type": "models.Dense"}, "4"),
    ],
)
def test_odd_modules_of_a_folder_do_not_stop_the_start(
    tmp_path: Path, modules: object, size: str
) -> None:
    model = folder(
        tmp_path / "model", {"architectures": ["BertModel"], "hidden_size": 4}, modules=modules
    )
    folder(tmp_path / "model" / "1_Dense", {"out_features": 8})
    (tmp_path / "model" / "pipe").mkdir()
    os.mkfifo(tmp_path / "model" / "pipe" / "config.json")
    assert flags(model).fallbacks["default-embedding-dimensions"] == size


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (
            ["deepseek-ai/DeepSeek-R1", "--reasoning-parser", "qwen3"],
            "--reasoning-parser qwen3 is not the parser of deepseek-ai/DeepSeek-R1"
            " (use --reasoning-parser deepseek_r1)",
        ),
        (
            ["Qwen/Qwen3-8B", "--max-model-len", "100000"],
            "--max-model-len 100000 is more than the 40960 tokens of Qwen/Qwen3-8B"
            " (use --max-model-len 40960, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1)",
        ),
        (["Qwen/Qwen3-8B", "--reasoning-parser", "qwen3"], ""),
    ],
)
def test_options_that_do_not_suit_the_model_are_one_warning(words: list[str], warning: str) -> None:
    assert settings_of(words, {}, settings_type()).model_warning == warning
