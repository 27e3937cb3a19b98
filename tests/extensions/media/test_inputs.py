"""Requests are judged by the inputs that vLLM's registry gives a model without rules for media."""

from __future__ import annotations

import pytest

from tests.application import app_of

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=="
)
PARTS = {
    "image": {"type": "image_url", "image_url": {"url": PIXEL}},
    "audio": {"type": "audio_url", "audio_url": {"url": "http://good.example/a.wav"}},
    "video": {"type": "video_url", "video_url": {"url": "http://good.example/a.mp4"}},
}


def refusal(model: str, modality: str) -> str:
    """Returns the error about a part of a modality; empty if it is read."""
    client = app_of("--model", model, "--force-dummy-tokenizer").test_client()
    messages = [{"role": "user", "content": [PARTS[modality]]}]
    answer = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    if answer.status_code == 200:
        return ""
    assert answer.json["error"]["code"] == 400
    return str(answer.json["error"]["message"])


@pytest.mark.parametrize(
    ("model", "modality"),
    [
        ("fixie-ai/ultravox-v0_5-llama-3_2-1b", "image"),
        ("fixie-ai/ultravox-v0_5-llama-3_2-1b", "video"),
        ("nvidia/audio-flamingo-3-hf", "image"),
        ("google/paligemma2-3b-ft-docci-448", "audio"),
        ("lightonai/LightOnOCR-1B-1025", "video"),
        ("OpenGVLab/InternVL2-4B", "audio"),
    ],
)
def test_input_that_the_class_does_not_read_is_refused(model: str, modality: str) -> None:
    expected = f"At most 0 {modality}(s) may be provided in one prompt. (parameter={modality})"
    assert refusal(model, modality) == expected


@pytest.mark.parametrize(
    ("model", "modality"),
    [
        ("google/paligemma2-3b-ft-docci-448", "image"),
        ("lightonai/LightOnOCR-1B-1025", "image"),
        ("OpenGVLab/InternVL2-4B", "image"),
        ("OpenGVLab/InternVL2-4B", "video"),
        ("fixie-ai/ultravox-v0_5-llama-3_2-1b", "audio"),
        ("someone/unknown", "audio"),
    ],
)
def test_input_that_the_class_reads_is_taken(model: str, modality: str) -> None:
    assert "At most 0" not in refusal(model, modality)
