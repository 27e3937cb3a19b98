"""Answers of transcriptions and translations: one JSON body, or chunks of a stream.

A long sound has several prompts, one for each clip. Their texts follow one another.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from app.core.api.choice_state import ChoiceState
from app.core.api.identity import ResponseMeta
from app.core.api.writer import ResponseWriter
from app.core.engine.outputs import Tokens
from app.core.protocol.common import Usage
from app.core.server.http.response import DONE
from app.extensions.media.speech.clips import Clip
from app.extensions.media.speech.languages import WITHOUT_SPACES
from app.extensions.media.speech.protocol import (
    AudioUsage,
    Delta,
    SpeechChoice,
    SpeechChunk,
    SpeechSegment,
    Transcription,
    Translation,
    VerboseSpeech,
)

TIMESTAMP_S = 0.02
"""Time between two timestamps of a model, in seconds."""
SENTENCE_ENDS = (".", "?", "!")
LOGPROB = -1.0
"""Log probability of each token, as in the answers of chats."""


class SpeechOptions(Struct, frozen=True, kw_only=True):
    """Content of an answer."""

    translates: bool
    language: str | None
    seconds: float
    """Duration of the sound."""
    clips: Sequence[Clip]
    prompt_tokens: Sequence[int]
    """Prompt tokens of each clip, as the usage of a stream counts them."""
    beams: int = 1
    """Choices of each clip; the answer has the text of the first one."""
    is_verbose: bool = False
    temperature: float = 0.0
    include_usage: bool = False
    continuous_usage: bool = False

    @property
    def separator(self) -> str:
        """The text between those of two clips."""
        return "" if self.language in WITHOUT_SPACES else " "


class SpeechWriter(ResponseWriter):
    """Writes the text of a sound."""

    def __init__(self, meta: ResponseMeta, options: SpeechOptions) -> None:
        super().__init__(len(options.clips) * options.beams)
        self._meta = meta
        self._options = options
        self._current = 0
        """Clip whose text the stream shows now."""
        self._held: list[list[Tokens]] = [[] for _ in options.clips]
        """Tokens of later clips, whose texts the stream shows later."""
        self._has_text = False
        """The stream has shown text of the current clip."""
        self._tokens = 0
        """Tokens of the texts in the stream."""

    def _render_tokens(self, output: Tokens) -> bytes:
        if output.index != self._current:
            self._held[output.index].append(output)
            return b""
        chunks = self._render(output)
        while output.finish is not None and self._current + 1 < len(self._held):
            self._current += 1
            self._has_text = False
            held = self._held[self._current]
            for output in held:
                chunks += self._render(output)
            if not held:
                break
            held.clear()
        return b"".join(chunks)

    def _render(self, output: Tokens) -> list[bytes]:
        chunks: list[bytes] = []
        last = max(1, len(output.texts)) - 1
        for position in range(last + 1):
            span = slice(position, None if position == last else position + 1)
            finish = output.finish if position == last else None
            text = "".join(output.texts[span])
            self._tokens += len(output.ids[span])
            if text and self._current and not self._has_text:
                self._has_text = True
                text = self._options.separator + text
            if not text and finish is None:
                continue
            choice = SpeechChoice(Delta(text))
            if finish is not None:
                choice.finish_reason = finish.reason
                choice.stop_reason = finish.stop_reason
            chunks.append(self._chunk([choice], self._options.continuous_usage))
        return chunks

    def _chunk(self, choices: Sequence[SpeechChoice], has_usage: bool) -> bytes:
        meta = self._meta
        kind = "translation.chunk" if self._options.translates else "transcription.chunk"
        chunk = SpeechChunk(meta.id, kind, meta.created, meta.model, choices)
        if has_usage:
            prompt_tokens = self._options.prompt_tokens[self._current]
            counts = self.usage.override(prompt_tokens, self._tokens)
            chunk.usage = Usage(counts[0], sum(counts), counts[1])
        return b"data: %b\n\n" % self.encode(chunk)

    def closing(self) -> bytes:
        """Returns the end of the stream."""
        if self.has_failed or not self._options.include_usage:
            return DONE
        return self._chunk([], has_usage=True) + DONE

    def whole(self) -> Struct:
        """Returns the whole answer, once all outputs are collected."""
        options = self._options
        choices = self.choices[:: options.beams]
        if options.is_verbose:
            return self._verbose(choices)
        text = options.separator.join([_text_of(choice) for choice in choices])
        if options.translates:
            return Translation(text)
        return Transcription(text, AudioUsage("duration", math.ceil(options.seconds)))

    def _verbose(self, choices: Sequence[ChoiceState]) -> VerboseSpeech:
        options = self._options
        segments: list[SpeechSegment] = []
        for clip, choice in zip(options.clips, choices, strict=True):
            segments += _segments(clip, choice, options.temperature)
        return VerboseSpeech(
            duration=options.seconds,
            language=options.language or "",
            text=options.separator.join([segment.text for segment in segments]),
            segments=segments,
        )


def _text_of(choice: ChoiceState) -> str:
    return choice.texts_by_kind()["text"]


def _segments(clip: Clip, choice: ChoiceState, temperature: float) -> list[SpeechSegment]:
    """Returns a segment for each sentence; vLLM numbers the segments of each clip from 0."""
    texts: list[str] = []
    for part in choice.segments:
        texts += part.texts
    ids = choice.ids
    if len(texts) != len(ids):
        texts = [_text_of(choice)]
    elif not texts[-1]:  # the token that ends the text
        texts.pop()
        ids = ids[:-1]
    ends = [number + 1 for number, text in enumerate(texts) if text.endswith(SENTENCE_ENDS)]
    bounds = sorted({0, *ends, len(texts)})
    steps = clip.seconds / TIMESTAMP_S
    segments: list[SpeechSegment] = []
    for first, last in pairwise(bounds):
        text = "".join(texts[first:last])
        encoded = text.encode("utf-8", "replace")
        tokens = ids if len(texts) == 1 else ids[first:last]
        # vLLM divides by two more tokens, the timestamps, and adds the probability of one.
        segments.append(
            SpeechSegment(
                id=len(segments),
                avg_logprob=LOGPROB * (len(tokens) + 1) / (len(tokens) + 2),
                compression_ratio=len(encoded) / len(zlib.compress(encoded)),
                end=clip.start_s + TIMESTAMP_S * round(steps * last / len(texts)),
                no_speech_prob=None,
                seek=int(clip.start_s),
                start=clip.start_s + TIMESTAMP_S * round(steps * first / len(texts)),
                temperature=temperature,
                text=text,
                tokens=tokens,
            )
        )
    return segments
