"""The pooling routes: embeddings, pooling, classify, score and rerank (vllm-api.md section 8).

One struct has both forms of a request, texts and conversations. A value of neither form is reported
as a wrong ``input``, as in vLLM.
"""

from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Annotated, ClassVar, Literal, cast

from msgspec import UNSET, Meta, Struct, UnsetType

from app.serving.http.errors import bad_request
from app.serving.protocol import rules
from app.serving.protocol.chat import Message, convert_messages
from app.serving.protocol.coercion import (
    ConversionError,
    JsonObject,
    Path,
    convert_value,
    unconverted,
)
from app.serving.protocol.decoding import RawRequest, Request
from app.serving.protocol.options import CacheSalt, Int64, Natural

MAX_INPUTS = 65_536
"""Most texts, conversations or documents in one request."""
MAX_DIMENSIONS = 65_536

PoolingTask = Literal[
    "embed", "classify", "token_embed", "token_classify", "plugin", "embed&token_classify"
]
REMOVED_TASKS = frozenset(("score", "encode"))

BEFORE_INPUT = frozenset(
    ("encoding_format", "embed_dtype", "endianness", "dimensions", "use_activation")
)
"""Fields that vLLM checks before `input`; in conversations, later misfits become a missing `input`.
"""

TokenIds = list[int]
Prompts = list[str] | list[TokenIds]
Conversation = list[Message]
Input = str | list[str | int | list[int | Message] | Message]


class PoolingFields(Request, kw_only=True):
    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    padding: Literal["max_length", "do_not_pad"] | None = None
    truncation_side: Literal["left", "right"] | None = None
    request_id: str = ""
    """Empty without one from the client: vLLM then draws a random id."""
    priority: Int64 = 0
    mm_processor_kwargs: JsonObject | None = None
    cache_salt: CacheSalt | None = None
    use_activation: bool | None = None
    """None: the model's default."""

    def check_rules(self: "PoolingFields | RawRequest") -> None:
        rules.check_cache_salt(self.cache_salt)


class ClassificationRequest(PoolingFields, kw_only=True):
    """Texts, token ids or conversations; after decoding, one of three properties has them."""

    input: Input | UnsetType = UNSET
    messages: list[Message | list[Message]] | UnsetType = UNSET
    add_special_tokens: bool | UnsetType = UNSET
    """Never UNSET after decoding:

    true for texts; false for conversations (the template adds them).
    """
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    media_io_kwargs: dict[str, JsonObject] | None = None
    normalize: object = UNSET
    """Removed from vLLM; its presence is an error."""
    task: object = None

    lax_fields: ClassVar[Mapping[str, Hashable]] = {"input": unconverted, "messages": unconverted}
    rule_defaults: ClassVar[Mapping[str, object]] = {"normalize": UNSET}
    batched: ClassVar[bool] = False
    """Allows several conversations, also as `input`."""

    @classmethod
    def error_path(cls, values: JsonObject, path: Path) -> Path:
        return path if "input" in values or path[0] in BEFORE_INPUT else ("input",)

    def __post_init__(self) -> None:
        chats = _conversations(self.messages, self.batched)
        if chats is None and self.batched and self.input:
            chats = _conversations(self.input, True)
        if chats is None:
            self.input, self.messages = cast(Input, _prompts(self.input)), UNSET
        else:
            self.input, self.messages = UNSET, cast("list[Message | list[Message]]", chats)
        if self.add_special_tokens is UNSET:
            self.add_special_tokens = chats is None

    @property
    def conversations(self) -> list[Conversation]:
        return cast("list[Conversation]", self.messages or [])

    @property
    def texts(self) -> list[str]:
        return (
            cast("list[str]", self.input) if self.input and isinstance(self.input[0], str) else []
        )

    @property
    def id_lists(self) -> list[TokenIds]:
        return (
            cast("list[TokenIds]", self.input)
            if self.input and isinstance(self.input[0], list)
            else []
        )

    def check_rules(self: "ClassificationRequest | RawRequest") -> None:
        if self.normalize is not UNSET:
            raise bad_request(
                "normalize is no longer known: use_activation has taken its place", "normalize"
            )
        if isinstance(self.task, str) and self.task in REMOVED_TASKS:
            raise bad_request(f"task {self.task!r} is no longer known", "task")
        PoolingFields.check_rules(self)
        rules.check_continuation(self.continue_final_message, self.add_generation_prompt)


class EncodedRequest(ClassificationRequest, kw_only=True):
    """A request whose answer has vectors; the first three fields choose their encoding."""

    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    embed_dtype: Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] = "float32"
    """For base64 and bytes only."""
    endianness: Literal["native", "big", "little"] = "native"
    """For base64 and bytes only."""
    dimensions: int | None = None


class EmbeddingRequest(EncodedRequest, kw_only=True):
    """The body of ``POST /v1/embeddings``."""

    batched: ClassVar[bool] = True


class PoolingRequest(EncodedRequest, kw_only=True):
    """The body of ``POST /pooling``."""

    task: PoolingTask | None = None
    data: object = UNSET
    """Input of a vLLM plugin that parses inputs itself."""

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except ConversionError:
            if self.data is UNSET:
                raise
            self.input, self.messages, self.task = UNSET, UNSET, "plugin"


def _prompts(value: object) -> Prompts:
    """Converts each of the four forms of `value` to a list. Raises `ConversionError`."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ConversionError("a text, texts, token ids or lists of them", "input")
    prompts: Prompts | TokenIds = value
    if set(map(type, value)) != {str}:
        try:
            prompts = convert_value(list[int] | list[list[int]], value)
        except ConversionError as error:
            raise error.prefixed("input") from None
    return cast(Prompts, [prompts] if prompts and isinstance(prompts[0], int) else prompts)


def _conversations(value: object, batched: bool) -> list[Conversation] | None:
    """Returns the conversations in `value`; None when vLLM would not accept `value` as
    conversations.
    """
    if not isinstance(value, list):
        return None
    many = batched and bool(value) and all(isinstance(each, list) and each for each in value)
    try:
        return [convert_messages(chat) for chat in (value if many else [value])]
    except ConversionError:
        return None


class ContentPart(Struct):
    type: Literal["text", "image_url", "image_embeds", "video_url"]
    text: str | None = None
    image_url: str | JsonObject | None = None
    image_embeds: str | JsonObject | None = None
    video_url: str | JsonObject | None = None

    def __post_init__(self) -> None:
        if getattr(self, self.type) is None:
            raise ConversionError(f"{self.type} beside its type")


class MixedInput(Struct):
    content: list[ContentPart]


ScoreInput = str | MixedInput
ScoreInputs = ScoreInput | list[ScoreInput]

_PAIRS = (
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
)


class ScoringRequest(PoolingFields, kw_only=True):
    """The common fields of score and rerank; 0: no limit."""

    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0
    instruction: str | None = None
    chat_template_kwargs: JsonObject | None = None


class ScoreRequest(ScoringRequest, kw_only=True):
    """The body of ``POST /score``: two sides, under one of four pairs of names."""

    queries: ScoreInputs | UnsetType = UNSET
    documents: ScoreInputs | UnsetType = UNSET
    items: ScoreInputs | UnsetType = UNSET
    data_1: ScoreInputs | UnsetType = UNSET
    data_2: ScoreInputs | UnsetType = UNSET
    text_1: ScoreInputs | UnsetType = UNSET
    text_2: ScoreInputs | UnsetType = UNSET

    lax_fields: ClassVar[Mapping[str, Hashable]] = {
        name: unconverted for pair in _PAIRS for name in pair
    }

    def __post_init__(self) -> None:
        for names in _PAIRS:
            with suppress(ConversionError):
                self.queries, self.documents = (_inputs(getattr(self, name)) for name in names)
                return
        _inputs(self.queries, "queries")
        raise ConversionError(TEXTS, "documents")


TEXTS = "a text or a list of texts"


def _inputs(value: object, *path: str) -> ScoreInputs:
    """Converts one side of a score. Raises `ConversionError` at `path`."""
    try:
        return cast(ScoreInputs, convert_value(ScoreInputs, value))
    except ConversionError:
        raise ConversionError(TEXTS, *path) from None


def _one_input(value: object) -> object:
    if isinstance(value, list):
        raise ConversionError("a text")
    return _inputs(value)


class RerankRequest(ScoringRequest, kw_only=True):
    """The body of ``POST /rerank``; `top_n` 0: all documents."""

    query: ScoreInput
    documents: ScoreInputs
    top_n: Natural = 0

    lax_fields: ClassVar[Mapping[str, Hashable]] = {"query": _one_input, "documents": _inputs}


class CohereEmbedRequest(Request, kw_only=True):
    """The body of ``POST /v2/embed``."""

    model: str | None = None
    input_type: str | None = None
    """Name of the model's instruction that precedes every input."""
    texts: list[str] | None = None
    images: list[str] | None = None
    inputs: list[MixedInput] | None = None
    output_dimension: int | None = None
    embedding_types: list[Literal["float", "binary", "ubinary", "base64"]] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    max_tokens: int | None = None
    priority: Int64 = 0

    def __post_init__(self) -> None:
        given = [each for each in (self.texts, self.images, self.inputs) if each is not None]
        if len(given) != 1 or not given[0]:
            raise ConversionError(
                "exactly one of texts, images and inputs, and it must not be empty"
            )

    @property
    def has_images(self) -> bool:
        kinds = {part.type for each in self.inputs or () for part in each.content}
        return self.images is not None or "image_url" in kinds

    def as_embedding(self, instruction: str) -> EmbeddingRequest:
        """Converts to a body of ``POST /v1/embeddings``; `instruction` precedes texts and media.

        ApiError 400 for `max_tokens` below -1.
        """
        keep = (
            None if self.truncate == "NONE" else -1 if self.max_tokens is None else self.max_tokens
        )
        if keep is not None and keep < -1:
            raise bad_request(f"max_tokens must be -1 or more, got {keep}")
        request = EmbeddingRequest(
            model=self.model,
            input=[instruction + text for text in self.texts or [""]],
            dimensions=self.output_dimension,
            truncate_prompt_tokens=keep,
            truncation_side="left" if self.truncate == "START" else None,
            priority=self.priority,
        )
        if self.texts is None:
            contents: list[object] = [
                [{"type": "image_url", "image_url": {"url": url}}] for url in self.images or ()
            ]
            contents += [
                [{"type": part.type, part.type: getattr(part, part.type)} for part in each.content]
                for each in self.inputs or ()
            ]
            system: list[Message] = [
                {"role": "system", "content": [{"type": "text", "text": instruction}]}
            ]
            chats = [
                [*system[: bool(instruction)], {"role": "user", "content": each}]
                for each in contents
            ]
            request.input, request.messages, request.add_special_tokens = UNSET, [*chats], False
        return request
