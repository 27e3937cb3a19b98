"""Prompts of speech models, in the three forms of `SpeechModel.prompt`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from app.core.api.chat.media import BuiltPrompt
from app.core.api.chat.prompt import chat_prompt
from app.core.api.pipeline import RequestPipeline
from app.core.protocol.chat import ChatCompletionRequest, Message
from app.core.protocol.validation import check_prompt_length
from app.extensions.media.reader import Reader
from app.extensions.media.speech.languages import NAMES
from app.extensions.media.speech.models import SpeechModel
from app.extensions.media.speech.protocol import SpeechRequest

START = "<|startoftranscript|>"
WITHOUT_TIMES = "<|notimestamps|>"
FIRST_TIME = "<|0.00|>"
SOUND = "audio_url"
"""Type of a sound in a message."""
UNKNOWN_MARK = 0
"""Token that stands for a mark which the tokenizer lacks."""


def marks_prompt(pipeline: RequestPipeline, text: str, marks: Sequence[str]) -> BuiltPrompt:
    """Returns the text that precedes a sound, and marks of one token each."""
    ids: list[int] = []
    if text:
        pipeline.check_text(text)
        ids += pipeline.tokenizer.encode(f"<|prev|>{text}")
    for mark in marks:
        encoded = pipeline.tokenizer.encode(mark)
        ids.append(encoded[0] if len(encoded) == 1 else UNKNOWN_MARK)
    check_prompt_length(len(ids), pipeline.limits.max_model_len, is_text=True)
    return BuiltPrompt(ids, text, (("user", text),) if pipeline.keeps_turns else ())


def whisper_marks(language: str, task: str, is_verbose: bool) -> list[str]:
    """Returns the marks of a transcription or translation by Whisper."""
    times = FIRST_TIME if is_verbose else WITHOUT_TIMES
    return [START, f"<|{language}|>", f"<|{task}|>", times]


def sound_prompt(
    pipeline: RequestPipeline,
    model: SpeechModel,
    request: SpeechRequest,
    *,
    translates: bool,
    sound: tuple[bytes, int],
) -> BuiltPrompt:
    """Returns a chat with a sound, which is its data and the number of its samples."""
    text = request.prompt
    if model.prompt == "instruction":
        text = instruction(request, translates=translates)
    parts: list[dict[str, object]] = []
    if pipeline.media is not None:
        name = cast("Reader", pipeline.media()).remember_sound(*sound)
        parts.append({"type": SOUND, SOUND: {}, "uuid": name})
    if text:
        parts.append({"type": "text", "text": text})
    message = cast("Message", {"role": "user", "content": parts})
    chat = ChatCompletionRequest(messages=[message])
    return chat_prompt(pipeline, chat, chat.messages)


def instruction(request: SpeechRequest, *, translates: bool) -> str:
    """Returns the words that ask a model for a text."""
    source = NAMES.get(request.language or "", "")
    target_code = request.to_language
    if translates and target_code is None:
        target_code = "en"
    target = NAMES.get(target_code or "", "")
    words = "Transcribe this audio"
    if translates:
        words = "Translate this audio"
        if source:
            words += f" from {source}"
        if target:
            words += f" into {target}"
    elif source:
        words += f" into {source}"
    words += "."
    if request.prompt:
        words += f" {request.prompt}"
    return words
