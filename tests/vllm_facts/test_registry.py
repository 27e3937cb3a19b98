"""Kinds of models by vLLM's registry: architectures, names, and versions.

The expected values for vLLM 0.32 are those of its `ModelConfig`, which was asked in process.
"""

import json
from pathlib import Path

import pytest

from tests.vllm_facts.test_model_choice import folder, served
from vllm_facts.model_choice import choose_model, model_fallbacks
from vllm_facts.models import read_rows
from vllm_facts.registry import POOLING_TASKS, read_registry
from vllm_facts.version import PATCHES

GENERATE = "generate"
TESTS = "tests of vLLM"


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        # The registry has these; their ends say otherwise, or nothing.
        ("Qwen2_5OmniModel", GENERATE),
        ("UltravoxModel", GENERATE),
        ("MiDashengLMModel", GENERATE),
        ("MossAudioModel", GENERATE),
        ("LlamaModel", GENERATE),
        ("MistralModel", GENERATE),
        ("HF_ColBERT", "token_embed"),
        ("ColBERTModernBertModel", "token_embed"),
        ("ColQwen3", "token_embed"),
        ("ColQwen3_5", "token_embed"),
        ("ColPaliForRetrieval", "token_embed"),
        ("JinaForRanking", "token_embed"),
        ("Terratorch", "plugin"),
        ("ClefOmniForJointSchema", "token_classify"),
        ("BertForMaskedLM", "token_classify"),
        ("BertForTokenClassification", "token_classify"),
        ("InternLM2ForRewardModel", "token_classify"),
        ("BgeM3EmbeddingModel", "embed"),
        ("LlamaBidirectionalModel", "embed"),
        ("CLIPModel", "embed"),
        ("JinaVLForRanking", "score"),
        ("BertForSequenceClassification", "classify"),
        ("LlamaBidirectionalForSequenceClassification", "classify"),
        ("WhisperForConditionalGeneration", "transcription"),
        ("CohereAsrForConditionalGeneration", "transcription"),
        ("Qwen3ASRForConditionalGeneration", GENERATE),
        # The registry lacks these, so that their ends decide.
        ("SomeModel", "embed"),
        ("SomeRewardModel", "embed"),
        ("SomeForSequenceClassification", "classify"),
        ("SomeForCausalLM", GENERATE),
        ("Some", GENERATE),
    ],
)
def test_folder_with_an_architecture_is_served_as_in_vllm(
    tmp_path: Path, architecture: str, task: str
) -> None:
    model = folder(tmp_path, {"architectures": [architecture], "hidden_size": 32})
    assert served(model, "--vllm-version", "0.32").model.task == task


def test_classifier_of_tokens_that_vllm_converts_has_both_tasks(tmp_path: Path) -> None:
    model = folder(tmp_path, {"architectures": ["LlamaForTokenClassification"]})
    settings = served(model).model
    assert (settings.task, settings.pooling_task) == ("classify", "token_classify")


@pytest.mark.parametrize(
    ("architectures", "task"),
    [
        (["Unknown", "HF_ColBERT"], "token_embed"),
        (["Qwen2_5OmniModel", "HF_ColBERT"], GENERATE),
        (["Unknown"], GENERATE),
        ([], GENERATE),
        (["Unknown", 5, None], GENERATE),
    ],
)
def test_first_architecture_that_vllm_can_judge_decides(
    tmp_path: Path, architectures: list[object], task: str
) -> None:
    assert served(folder(tmp_path, {"architectures": architectures})).model.task == task


@pytest.mark.parametrize(
    ("architecture", "version", "task"),
    [
        ("BertForMaskedLM", "0.25", GENERATE),
        ("BertForMaskedLM", "0.26", "token_classify"),
        ("SomeRewardModel", "0.12", "token_classify"),
        ("SomeRewardModel", "0.13", "embed"),
        ("SomeForTokenClassification", "0.12", GENERATE),
        ("SomeForTokenClassification", "0.13", "classify"),
        ("GritLM", "0.10.0", GENERATE),
        ("GritLM", "0.10.1", "embed"),
        ("GritLM", "0.28", "embed"),
        ("GritLM", "0.29", GENERATE),
        ("SomeModel", "0.10.0", GENERATE),
        ("SomeModel", "0.10.1", "embed"),
        ("LlamaModel", "0.10.0", GENERATE),
        ("BertModel", "0.10.0", "embed"),
        ("GteModel", "0.10.0", "embed"),
        ("Qwen3ForSequenceClassification", "0.10.0", "classify"),
    ],
)
def test_version_of_vllm_decides_with_its_own_registry(
    tmp_path: Path, architecture: str, version: str, task: str
) -> None:
    model = folder(tmp_path, {"architectures": [architecture]})
    assert served(model, "--vllm-version", version).model.task == task


def test_files_of_sentence_transformers_decide_before_the_registry(tmp_path: Path) -> None:
    model = folder(tmp_path, {"architectures": ["MistralModel"]}, modules=[])
    assert served(model).model.task == "embed"
    assert served(model, "--runner", "generate").model.task == GENERATE
    assert served(model, "--vllm-version", "0.10.0").model.task == GENERATE


def test_runner_decides_before_the_registry(tmp_path: Path) -> None:
    colbert = folder(tmp_path / "colbert", {"architectures": ["HF_ColBERT"]})
    omni = folder(tmp_path / "omni", {"architectures": ["Qwen2_5OmniModel"]})
    assert served(colbert, "--runner", "pooling").model.task == "token_embed"
    assert served(colbert, "--runner", "auto").model.task == "token_embed"
    assert served(omni, "--runner", "pooling").model.task == "embed"
    assert served(omni, "--convert", "classify").model.task == "classify"


@pytest.mark.parametrize("version", PATCHES)
def test_each_version_has_a_kind_for_each_of_its_architectures(version: str) -> None:
    registry = read_registry()
    names = registry.names_in(version)
    assert len(names) > 170
    kinds = {name: registry.kind_of([name], version) for name in names}
    for name, kind in kinds.items():
        assert kind.is_registered, name
        assert kind.pooling_task in ("", *POOLING_TASKS), name
        assert (kind.runner == "pooling") == bool(kind.tasks), name
    generating = [name for name, kind in kinds.items() if kind.runner == GENERATE]
    assert {"LlamaForCausalLM", "Qwen2_5_VLForConditionalGeneration"} <= set(generating)
    assert kinds["BertModel"].pooling_task == "embed"


def test_models_of_vllm_tests_are_served_as_the_registry_says() -> None:
    registry = read_registry()
    rows = {name: row for name, row in read_rows().items() if row.source == TESTS}
    assert len(rows) > 250
    for name, row in rows.items():
        kind = registry.kind_of([row.architecture], "0.33")
        task = kind.pooling_task
        if row.task == "embed" and not task:  # with files of sentence-transformers
            task = "embed"
        choice = choose_model(name, skips_check=True, version="0.33")
        assert choice.task == task, name
        setting = model_fallbacks(choice).get("task", GENERATE)
        if kind.transcribes_only:
            assert setting == "transcription", name
        elif not task:
            assert setting == GENERATE, name
        elif "classify" in kind.tasks:
            assert setting in ("score", "classify"), name
        else:
            assert setting == task.partition("&")[0], name


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("Qwen/Qwen2.5-Omni-7B", GENERATE),
        ("Qwen/Qwen2.5-Omni-3B", GENERATE),
        ("fixie-ai/ultravox-v0_5-llama-3_2-1b", GENERATE),
        ("mispeech/midashenglm-7b", GENERATE),
        ("OpenMOSS-Team/MOSS-Audio-4B-Instruct", GENERATE),
        ("FreedomIntelligence/openPangu-Ultra-MoE-718B-V1.1", GENERATE),
        ("answerdotai/answerai-colbert-small-v1", "token_embed"),
        ("TomoroAI/tomoro-colqwen3-embed-4b", "token_embed"),
        ("athrael-soju/colqwen3.5-4.5B-v3", "token_embed"),
        ("ModernVBERT/colmodernvbert-merged", "token_embed"),
        ("ibm-nasa-geospatial/Prithvi-EO-2.0-300M-TL-Sen1Floods11", "plugin"),
        ("Cloudflare/clef-omni", "token_classify"),
        ("boltuix/NeuroBERT-NER", "token_classify"),
        ("Skywork/Skywork-Reward-V2-Qwen3-0.6B", "score"),
        ("Skywork/Skywork-Reward-V2-Llama-3.2-1B", "score"),
        ("ai21labs/Jamba-tiny-reward-dev", "score"),
        ("internlm/internlm2-1_8b-reward", "token_classify"),
        ("Qwen/Qwen2.5-Math-RM-72B", "token_classify"),
        ("cross-encoder/ms-marco-MiniLM-L-6-v2", "score"),
        ("nie3e/sentiment-polish-gpt2-small", "classify"),
        ("jason9693/Qwen2.5-1.5B-apeach", "classify"),
    ],
)
def test_model_of_vllm_examples_is_served_as_in_vllm(name: str, task: str) -> None:
    assert served(name, "--vllm-version", "0.32").model.task == task


def test_registry_knows_which_models_read_media_and_speech() -> None:
    registry = read_registry()
    omni = registry.kind_of(["Qwen2_5OmniModel"], "0.32")
    assert omni.reads_media
    assert omni.inputs == {"image", "video", "audio"}
    assert not registry.kind_of(["LlamaForCausalLM"], "0.32").reads_media
    assert registry.kind_of(["Qwen3ASRForConditionalGeneration"], "0.32").transcribes
    variant = registry.kind_of(["Qwen3VLForSequenceClassification"], "0.32")
    assert variant.reads_media
    assert variant.pooling_task == "classify"


def test_overridden_architecture_decides(tmp_path: Path) -> None:
    overrides = json.dumps({"architectures": ["HF_ColBERT"]})
    assert served("Qwen/Qwen3-0.6B", "--hf-overrides", overrides).model.task == "token_embed"
    bert = folder(tmp_path, {"architectures": ["BertModel"]}, modules=[])
    assert served(bert, "--hf-overrides", overrides).model.task == "token_embed"
