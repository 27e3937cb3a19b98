"""Speech models by name: rows of the table, and families."""

import pytest

from app.core.settings import settings_type
from app.extensions.media.speech.models import speech_model, speech_models
from vllm_facts.models import find_model
from vllm_facts.serve import settings_of
from vllm_facts.speech_names import WORDS, speech_family

WHISPER = "WhisperForConditionalGeneration"
SIZES = ("tiny", "base.en", "small", "medium", "large", "large-v2", "large-v3", "large-v3-turbo")


@pytest.mark.parametrize("size", SIZES)
def test_whisper_of_each_size_transcribes_448_tokens(size: str) -> None:
    found = find_model(f"openai/whisper-{size}")
    assert found is not None
    assert (found[1].architecture, found[1].max_model_len) == (WHISPER, 448)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("jonatasgrosman/whisper-large-zh-cv11", WHISPER),
        ("nyrahealth/CrisperWhisper", WHISPER),
        ("distil-whisper/distil-large-v9", WHISPER),
        ("RedHatAI/whisper_tiny_FP8_dynamic", WHISPER),
        ("mistralai/Voxtral-Small-24B-2507", "VoxtralForConditionalGeneration"),
        ("someone/Voxtral-Mini-9B-Realtime-2701", "VoxtralRealtimeGeneration"),
        ("Qwen/Qwen3-Omni-30B-A3B-Captioner", "Qwen3OmniMoeForConditionalGeneration"),
        ("Qwen/Qwen3-ASR-0.6B", "Qwen3ASRForConditionalGeneration"),
        ("ibm-granite/granite-speech-3.3-8b", "GraniteSpeechForConditionalGeneration"),
        ("google/gemma-3n-E4B-it", "Gemma3nForConditionalGeneration"),
    ],
)
def test_name_of_a_speech_model_decides_its_architecture(name: str, architecture: str) -> None:
    found = find_model(name)
    assert found is not None
    assert found[1].architecture == architecture
    assert speech_model(name, "generate") == speech_models()[architecture]


@pytest.mark.parametrize(
    "name",
    ["WhisperSpeech/WhisperSpeech-S", "google/gemma-3-4b-it", "a/granite-3.3-8b", "x/b/whisper"],
)
def test_other_name_is_of_no_family(name: str) -> None:
    found = find_model(name)
    assert found is None or found[1].architecture not in speech_models()


def test_each_family_has_facts_of_speech() -> None:
    assert set(WORDS.values()) <= set(speech_models())
    assert speech_family("llama") is None


@pytest.mark.parametrize("name", ["openai/whisper-tiny", "someone/whisper-small-fr"])
def test_whisper_is_served_without_chats_whatever_its_size(name: str) -> None:
    flags = settings_of([name], {}, settings_type())
    assert flags.fallbacks["task"] == "transcription"
