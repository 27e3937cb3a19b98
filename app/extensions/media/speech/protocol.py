"""Forms of transcriptions and translations, and their answers, with keys in vLLM's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, TypeVar

from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import fields as fields_of

from app.core.base.nested_json import decode_nested
from app.core.protocol.coercion import (
    ConversionError,
    LaxFields,
    Path,
    format_param,
    unconverted,
)
from app.core.protocol.common import Usage
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.convert import convert
from app.core.protocol.decoding import RawRequest, Request, conversion_failure
from app.core.protocol.options import INT64_MAX, INT64_MIN, ExtraArg, StreamOptions
from app.core.server.http.errors import ApiError, bad_request
from app.extensions.media.speech.form import FormValue
from config.untrusted import UntrustedDataError

STREAM_OPTIONS = ("stream_include_usage", "stream_continuous_usage_stats")
Format = Literal["json", "text", "srt", "verbose_json", "vtt"]
TranscriptionFormat = Format | Literal["diarized_json"]
S = TypeVar("S", bound="SpeechRequest")


class SpeechRequest(Request, kw_only=True):
    """The form of a translation, and most of the form of a transcription."""

    file: object
    """An `UploadedFile`."""
    model: str | None = None
    language: str | None = None
    hotwords: str | None = None
    prompt: str = ""
    response_format: TranscriptionFormat = "json"
    stream: bool | None = False
    stream_include_usage: bool | None = False
    stream_continuous_usage_stats: bool | None = False
    vllm_xargs: dict[str, ExtraArg] | None = None
    to_language: str | None = None
    use_beam_search: bool = False
    n: int = 1
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    temperature: float = 0.0
    watermarking: bool | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)] | None = None
    frequency_penalty: float | None = 0.0
    repetition_penalty: float | None = None
    presence_penalty: float | None = 0.0
    max_completion_tokens: int | None = None

    lax_fields: ClassVar[LaxFields] = {"file": unconverted, "response_format": Format}

    def check_rules(self: SpeechRequest | RawRequest) -> None:
        """Requires a file, and a stream for the options of streams."""
        if isinstance(self.file, str):
            raise ApiError(
                422,
                "Unprocessable Entity",
                "Expected 'file' to be a file-like object, not 'str'.",
            )
        for name in STREAM_OPTIONS:
            if getattr(self, name) and not self.stream:
                raise bad_request("Stream options can only be defined when `stream=True`.", name)

    def as_completion(self, max_model_len: int) -> CompletionRequest:
        """Returns the request for a text; vLLM lowers a limit of tokens that is too high."""
        max_tokens = max_model_len
        if self.max_completion_tokens is not None:
            max_tokens = min(max_tokens, self.max_completion_tokens)
        completion = CompletionRequest(
            model=self.model,
            prompt=self.prompt,
            max_tokens=max_tokens,
            include_stop_str_in_output=self.include_stop_str_in_output,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            vllm_xargs=self.vllm_xargs,
        )
        if self.use_beam_search:
            completion.use_beam_search = True
            completion.n = self.n
            completion.length_penalty = self.length_penalty
        if self.stream:
            completion.stream = True
            completion.stream_options = StreamOptions(
                include_usage=self.stream_include_usage,
                continuous_usage_stats=self.stream_continuous_usage_stats,
            )
        return completion


class TranscriptionRequest(SpeechRequest, kw_only=True):
    """The form of ``POST /v1/audio/transcriptions``."""

    timestamp_granularities: list[Literal["word", "segment"]] = field(
        default_factory=list, name="timestamp_granularities[]"
    )
    """Has no effect in vLLM, either."""

    lax_fields: ClassVar[LaxFields] = {
        "file": unconverted,
        "response_format": TranscriptionFormat,
    }


class TranslationRequest(SpeechRequest, kw_only=True):
    """The form of ``POST /v1/audio/translations``."""


def decode_form(values: Mapping[str, FormValue], kind: type[S], absent_fields: Sequence[str]) -> S:
    """Returns the request in a form; fields that the played version lacks have their defaults.

    As in vLLM's server, the values of an error count the fields that have their defaults.

    Raises:
        ApiError: Status 400 or 422 for an invalid form.
    """
    fields: dict[str, object] = {
        name: [value] if name.endswith("[]") else value for name, value in values.items()
    }
    for declared in fields_of(kind):
        name = declared.encode_name
        if declared.name in absent_fields:
            fields.pop(name, None)
        elif declared.default_factory is not NODEFAULT:
            fields.setdefault(name, declared.default_factory())
        elif declared.default not in (None, NODEFAULT):
            fields.setdefault(name, declared.default)
    kind.check_rules(RawRequest(fields, {}))
    arguments = fields.get("vllm_xargs")
    if isinstance(arguments, str):
        try:
            fields["vllm_xargs"] = decode_nested(arguments)
        except UntrustedDataError as error:
            message = f"Failed to parse vllm_xargs. Must be valid JSON: {error}"
            raise bad_request(message, "vllm_xargs") from None
    try:
        return convert(kind, fields)
    except ConversionError as error:
        raise conversion_failure(error, fields, _path) from None


def _path(path: Path) -> str:
    """Returns the path of an error. vLLM leaves names with brackets out."""
    return format_param(tuple(step for step in path if "[" not in str(step)))


class AudioUsage(Struct):
    """The duration that is billed."""

    schemas: ClassVar[Sequence[str]] = ("TranscriptionUsageAudio",)
    type: str
    seconds: int
    """Rounded up."""


class Transcription(Struct):
    """A whole transcription."""

    schemas: ClassVar[Sequence[str]] = ("TranscriptionResponse",)
    text: str
    usage: AudioUsage


class Translation(Struct):
    """A whole translation."""

    schemas: ClassVar[Sequence[str]] = ("TranslationResponse",)
    text: str


class SpeechSegment(Struct):
    """A part of a text with its time in the sound, in seconds."""

    schemas: ClassVar[Sequence[str]] = ("TranscriptionSegment",)
    id: int
    avg_logprob: float
    compression_ratio: float
    end: float
    no_speech_prob: None
    seek: int
    start: float
    temperature: float
    text: str
    tokens: Sequence[int]


class VerboseSpeech(Struct):
    """A whole text with its segments."""

    schemas: ClassVar[Sequence[str]] = ("TranscriptionResponseVerbose",)
    duration: float
    """Seconds."""
    language: str
    text: str
    segments: Sequence[SpeechSegment]
    words: None = None


class Delta(Struct):
    """New text of a stream."""

    content: str


class SpeechChoice(Struct):
    """The choice of a chunk."""

    schemas: ClassVar[Sequence[str]] = ("TranscriptionResponseStreamChoice",)
    delta: Delta
    finish_reason: str | UnsetType = UNSET
    stop_reason: str | int | None | UnsetType = UNSET


class SpeechChunk(Struct):
    """A chunk of a stream."""

    schemas: ClassVar[Sequence[str]] = ("TranscriptionStreamResponse",)
    id: str
    object: str
    created: int
    model: str
    choices: Sequence[SpeechChoice]
    usage: Usage | UnsetType = UNSET
