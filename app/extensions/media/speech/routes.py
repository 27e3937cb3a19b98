"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from zlib import crc32

from msgspec import Struct
from msgspec.structs import asdict, replace

from app.core.api.chat.media import BuiltPrompt, placeholders
from app.core.api.identity import ResponseMeta
from app.core.api.pipeline import RequestPipeline
from app.core.api.responder import Responder
from app.core.api.writer import ResponseWriter
from app.core.base.caches import LimitedDict
from app.core.engine.request import EngineRequest, ScriptedReply
from app.core.protocol.coercion import JsonObject
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.validation import ValidatedRequest
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request
from app.core.server.http.response import CLIENT_GONE, Response, json_response
from app.core.server.http.route import STREAM_MEDIA, Route, RouteDocs, post
from app.extensions.media.sounds import HOP, RATE
from app.extensions.media.speech.clips import MAX_FILE_BYTES, samples_of, split
from app.extensions.media.speech.form import UploadedFile, read_form
from app.extensions.media.speech.languages import check_language
from app.extensions.media.speech.models import SpeechModel
from app.extensions.media.speech.prompts import START, marks_prompt, sound_prompt, whisper_marks
from app.extensions.media.speech.protocol import (
    SpeechRequest,
    Transcription,
    TranscriptionRequest,
    Translation,
    TranslationRequest,
    decode_form,
)
from app.extensions.media.speech.writer import SpeechOptions, SpeechWriter

FORMATS = ("text", "json", "verbose_json", "diarized_json")
UNSTREAMED = ("verbose_json", "diarized_json")
DETECTED_LANGUAGE = "en"
"""Language of a sound without one in its request."""
TOKENS_PER_SECOND = 3.3
"""Tokens of speech: 150 words a minute, of 1.3 tokens each."""
ENTRY_BYTES = 200
"""Memory of an entry of the lengths beside its name."""
MAX_FORM_BYTES = MAX_FILE_BYTES + (1 << 20)
"""Least limit of a form: the largest sound, with the other fields.

A longer sound of less than that has vLLM's error. JSON of this size would take long to decode, but
a form is read in slices.
"""
MAX_JSON_VALUES = 1 << 62
"""A form is no JSON: the commas and brackets in a file are not counted."""


class ClipPrompt(Struct, frozen=True):
    """A clip of a sound in the engine."""

    request_id: str
    prompt: BuiltPrompt


class SpeechResponder(Responder, frozen=True, kw_only=True):
    """Submits the requests of all clips; the pipeline makes the requests of the first one.

    A script decides about a sound once: its text is that of the first clip. Each clip has its own
    random numbers, because the prompts of all sounds may be equal.
    """

    clips: Sequence[ClipPrompt]
    seed: int
    """Differs for each sound."""

    def respond(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        stream: bool,
        context: RequestContext,
    ) -> Response:
        """Responds to requests whose replies repeat for the same sound, or are random."""
        count = len(requests) * len(self.clips)
        all_requests: list[EngineRequest] = []
        for number, clip in enumerate(self.clips):
            for first in requests:
                index = number * len(requests) + first.index
                sampling = first.sampling
                if sampling.temperature == 0 or sampling.seed is not None:
                    seed = (sampling.seed or 0) + self.seed + index
                    sampling = replace(sampling, seed=seed)
                script = first.script
                if number and script is not None and not script.passes:
                    script = ScriptedReply()
                request = replace(
                    first,
                    request_id=clip.request_id,
                    index=index,
                    prompt_ids=clip.prompt.ids,
                    media=placeholders(clip.prompt.features),
                    sampling=sampling,
                    script=script,
                    num_choices=count,
                )
                all_requests.append(request)
        return Responder.respond(self, all_requests, writer, stream, context)


class LanguageWriter(ResponseWriter):
    """Collects the token that names the language of a sound."""

    def whole(self) -> JsonObject:
        """Returns nothing: no client gets the token."""
        return {}


class SpeechHandlers(Struct, frozen=True, kw_only=True):
    """Answers forms with a sound for one model."""

    pipeline: RequestPipeline
    model: SpeechModel
    lengths: LimitedDict[str, int]
    """Tokens of the replies to requests that are being submitted, by their ids in the engine."""

    def transcribe(self, context: RequestContext) -> Response:
        """The text of a sound, in its language."""
        return self._answer(context, TranscriptionRequest, "transcribe")

    def translate(self, context: RequestContext) -> Response:
        """The text of a sound, in English or another language."""
        return self._answer(context, TranslationRequest, "translate")

    def _answer(self, context: RequestContext, kind: type[SpeechRequest], task: str) -> Response:
        pipeline = self.pipeline
        max_bytes = max(pipeline.body.max_bytes, MAX_FORM_BYTES)
        limits = replace(pipeline.body, max_bytes=max_bytes, max_values=MAX_JSON_VALUES)
        body = limits.read(context)
        absent = pipeline.version.shape.absent_fields(kind)
        request = decode_form(read_form(body, context.content_type), kind, absent)
        assert isinstance(request.file, UploadedFile)
        self._check(request)
        completion = request.as_completion(pipeline.limits.max_model_len)
        samples = samples_of(request.file.data)
        accepted = pipeline.admit(completion, context)
        meta = pipeline.identity.response_meta(task, context, "", accepted.model)
        if request.language is None and self.model.detects_language:
            if not self._detect_language(accepted, meta, context):
                return json_response(b"", CLIENT_GONE)
            request.language = DETECTED_LANGUAGE
        return self._submit(accepted, request, meta, context=context, samples=samples)

    def _check(self, request: SpeechRequest) -> None:
        """Applies vLLM's rules in vLLM's order.

        Raises:
            ApiError: A rule is broken.
        """
        if request.stream and request.use_beam_search:
            raise bad_request("Streaming is not currently supported with beam search")
        model = self.pipeline.models.resolve(request.model)
        form = request.response_format
        if form not in FORMATS:
            raise bad_request(
                "Currently only support response_format: "
                "`text`, `json`, `verbose_json` or `diarized_json`"
            )
        if form == "verbose_json" and not self.model.has_segments or form == "diarized_json":
            raise bad_request(f"Currently do not support {form} for {model}")
        if form in UNSTREAMED and request.stream:
            raise bad_request(f"{form} format doesn't support streaming case")
        check_language(request.language)
        check_language(request.to_language or None)

    def _detect_language(
        self,
        accepted: ValidatedRequest[CompletionRequest],
        meta: ResponseMeta,
        context: RequestContext,
    ) -> bool:
        """Computes the token of the language; returns False if the client has left."""
        pipeline = self.pipeline
        prompt = marks_prompt(pipeline, "", [START])
        writer = LanguageWriter(1)
        accepted.check_sampling([len(prompt.ids)])
        requests = pipeline.builder.build(
            accepted, meta, [prompt], context=context, constraint=None, writer=writer
        )
        request = replace(
            requests[0],
            request_id=f"{meta.id}-lang_detect",
            max_tokens=1,
            script=ScriptedReply(text=DETECTED_LANGUAGE),
            n=1,
            num_choices=1,
            beams=False,
        )
        return pipeline.responder.collect([request], writer, context.connection) is not None

    def _submit(
        self,
        accepted: ValidatedRequest[CompletionRequest],
        request: SpeechRequest,
        meta: ResponseMeta,
        *,
        context: RequestContext,
        samples: int,
    ) -> Response:
        pipeline = self.pipeline
        sound = request.file
        assert isinstance(sound, UploadedFile)
        clips = split(samples, self.model.clip_seconds)
        if len(clips) > 1:
            meta = replace(meta, joint="-")
        prompts = self._prompts(request, samples=samples, count=len(clips))
        frames = math.ceil(samples / HOP) if self.model.counts_frames else 0
        shared = pipeline.options(accepted)
        options = SpeechOptions(
            translates=isinstance(request, TranslationRequest),
            language=request.language,
            seconds=samples / RATE,
            clips=clips,
            prompt_tokens=[len(prompt.ids) + frames for prompt in prompts],
            beams=accepted.n,
            is_verbose=request.response_format == "verbose_json",
            temperature=request.temperature,
            include_usage=shared["include_usage"],
            continuous_usage=shared["include_usage"]
            and bool(request.stream_continuous_usage_stats),
        )
        clip_prompts: list[ClipPrompt] = []
        for number, clip in enumerate(clips):
            tokens = max(1, round(clip.seconds * TOKENS_PER_SECOND))
            request_id = meta.engine_id(number)
            self.lengths.add(request_id, tokens, ENTRY_BYTES + len(request_id))
            clip_prompts.append(ClipPrompt(request_id, prompts[number]))
        writer = SpeechWriter(meta, options)
        responder = SpeechResponder(
            **asdict(pipeline.responder), clips=clip_prompts, seed=crc32(sound.data)
        )
        return pipeline.submit(
            accepted, meta, prompts[:1], writer=writer, context=context, responder=responder
        )

    def _prompts(
        self, request: SpeechRequest, *, samples: int, count: int
    ) -> Sequence[BuiltPrompt]:
        """Returns the prompts of all clips."""
        pipeline = self.pipeline
        translates = isinstance(request, TranslationRequest)
        if self.model.prompt == "marks":
            marks = whisper_marks(
                request.language or DETECTED_LANGUAGE,
                "translate" if translates else "transcribe",
                request.response_format == "verbose_json",
            )
            return [marks_prompt(pipeline, request.prompt, marks)] * count
        assert isinstance(request.file, UploadedFile)
        build = partial(sound_prompt, pipeline, self.model, request, translates=translates)
        sound = (request.file.data, samples // count)
        return [build(sound=sound) for _ in range(count)]


def routes(handlers: SpeechHandlers) -> list[Route]:
    """Returns the routes of transcriptions and translations."""
    transcriptions = RouteDocs(
        body=(TranscriptionRequest,), answer=Transcription, media=STREAM_MEDIA
    )
    translations = RouteDocs(body=(TranslationRequest,), answer=Translation, media=STREAM_MEDIA)
    return [
        post("/v1/audio/transcriptions", handlers.transcribe, docs=transcriptions),
        post("/v1/audio/translations", handlers.translate, docs=translations),
    ]
