"""The pooling routes: embeddings, pooling, classify, score and rerank.

One struct has both forms of a request, texts and conversations. A value of neither form is reported
as an invalid ``input``, as in vLLM.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Annotated, ClassVar, Literal, cast

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from app.core.base.clock.pause import paced
from app.core.protocol import rules
from app.core.protocol.chat import Message, convert_messages
from app.core.protocol.coercion import (
    ConversionError,
    JsonObject,
    LaxFields,
    Path,
    joined,
)
from app.core.protocol.convert import convert_value
from app.core.protocol.decoding import RawRequest, Request
from app.core.protocol.lax_conversion import MAX_INVALID_ITEMS
from app.core.protocol.options import CacheSalt, Int64, Natural
from app.core.server.http.errors import bad_request

MAX_INPUTS = 65_536
"""Most texts, conversations or documents in one request."""
MAX_DIMENSIONS = 65_536

PoolingTask = Literal[
    "embed", "classify", "token_embed", "token_classify", "plugin", "embed&token_classify"
]
EmbedType = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
ChunkSize = Annotated[int, Meta(gt=0, le=2**63 - 1)]
Endianness = Literal["native", "big", "little"]
REMOVED_TASKS = frozenset(("score", "encode"))

BEFORE_INPUT = frozenset(
    ("encoding_format", "embed_dtype", "endianness", "dimensions", "use_activation")
)
"""Fields that vLLM checks before `input`.

An invalid value of any other field in a body of conversations is reported as a missing `input`.
"""
SCORE_FIELD_PAIRS = (
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
)
"""Names of the two sides of a score, in vLLM's order of trial."""
MIXED_INPUT = "ScoreMultiModalParam"
"""vLLM's name of the type of an input with parts, which the paths of its errors contain."""

TokenIds = list[int]
Prompts = list[str] | list[TokenIds]
Conversation = list[Message]
Input = str | list[str | int | list[int | Message] | Message]


class PoolingFields(Request, kw_only=True):
    """Common fields of the pooling routes, except Cohere's."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    padding: Literal["max_length", "do_not_pad"] | None = None
    truncation_side: Literal["left", "right"] | None = None
    request_id: str = ""
    """Empty if the client sends none: vLLM then draws a random id."""
    priority: Int64 = 0
    mm_processor_kwargs: JsonObject | None = None
    cache_salt: CacheSalt | None = None
    use_activation: bool | None = None
    """None stands for the model's default."""

    def check_rules(self: "PoolingFields | RawRequest") -> None:
        """Applies vLLM's rules that come before the schema."""
        rules.check_cache_salt(self.cache_salt)


class PromptRequest(PoolingFields, kw_only=True):
    """Texts or token ids.

    After decoding, one of the properties `texts` and `id_lists` has them.
    """

    input: Input | UnsetType = UNSET
    add_special_tokens: bool | UnsetType = UNSET
    """After decoding true for texts, and false for conversations: their template adds the tokens.
    """
    normalize: object = UNSET
    """Removed from vLLM; its presence is an error."""
    task: object = None

    lax_fields: ClassVar[LaxFields] = {"input": object}
    rule_defaults: ClassVar[JsonObject] = {"normalize": UNSET}
    refused_fields: ClassVar[Sequence[str]] = ("normalize",)

    def __post_init__(self) -> None:
        self.input = cast(Input, _convert_prompts(self.input))
        if self.add_special_tokens is UNSET:
            self.add_special_tokens = True

    @property
    def conversations(self) -> list[Conversation]:
        """The conversations of the request; empty for prompts."""
        return []

    @property
    def texts(self) -> list[str]:
        """The prompts, if they are texts."""
        if not self.input or not isinstance(self.input[0], str):
            return []
        return cast("list[str]", self.input)

    @property
    def id_lists(self) -> list[TokenIds]:
        """The prompts, if they are lists of token ids."""
        if not self.input or not isinstance(self.input[0], list):
            return []
        return cast("list[TokenIds]", self.input)

    def check_prompts(self) -> None:
        """Applies vLLM's rules that come before the prompts are tokens.

        Raises:
            ApiError: 400 for a broken rule.
        """

    def check_rules(self: "PromptRequest | RawRequest") -> None:
        """Applies vLLM's rules that come before the schema."""
        if self.normalize is not UNSET:
            raise bad_request(
                "Parameter `normalize` was removed; use `use_activation` instead.", "normalize"
            )
        if isinstance(self.task, str) and self.task in REMOVED_TASKS:
            raise bad_request(f"task {self.task!r} is no longer supported", "task")
        PoolingFields.check_rules(self)


class ClassificationRequest(PromptRequest, kw_only=True):
    """Texts, token ids or conversations.

    After decoding, one of the properties `texts`, `id_lists` and `conversations` has them.
    """

    schemas: ClassVar[Sequence[str]] = (
        "ClassificationCompletionRequest",
        "ClassificationChatRequest",
    )
    messages: list[Message | list[Message]] | UnsetType = UNSET
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    media_io_kwargs: dict[str, JsonObject] | None = None

    lax_fields: ClassVar[LaxFields] = {"input": object, "messages": object}
    batched: ClassVar[bool] = False
    """Allows several conversations, also as `input`."""

    @classmethod
    def error_path(cls, values: JsonObject, path: Path) -> Path:
        """Returns the path that vLLM reports for a conversion error at `path` of the body."""
        if "input" in values or path[0] in BEFORE_INPUT:
            return path
        return ("input",)

    def __post_init__(self) -> None:
        conversations = _convert_conversations(self.messages, self.batched)
        if conversations is None and self.batched and self.input:
            conversations = _convert_conversations(self.input, self.batched)
        if conversations is None:
            self.input = cast(Input, _convert_prompts(self.input))
            self.messages = UNSET
        else:
            self.input = UNSET
            self.messages = cast("list[Message | list[Message]]", conversations)
        if self.add_special_tokens is UNSET:
            self.add_special_tokens = conversations is None

    @property
    def conversations(self) -> list[Conversation]:
        """The conversations of the request; empty for prompts."""
        return cast("list[Conversation]", self.messages or [])

    def check_rules(self: "ClassificationRequest | RawRequest") -> None:
        """Applies vLLM's rules that come before the schema."""
        PromptRequest.check_rules(self)
        rules.check_continuation(self.continue_final_message, self.add_generation_prompt)


class EncodedRequest(ClassificationRequest, kw_only=True):
    """A request whose answer has vectors; the first three fields choose their encoding."""

    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    embed_dtype: EmbedType = "float32"
    """For base64 and bytes only."""
    endianness: Endianness = "native"
    """For base64 and bytes only."""
    dimensions: int | None = None


class EmbeddingRequest(EncodedRequest, kw_only=True):
    """The body of ``POST /v1/embeddings``."""

    schemas: ClassVar[Sequence[str]] = ("EmbeddingCompletionRequest", "EmbeddingChatRequest")
    batched: ClassVar[bool] = True


def _convert_chunk_size(value: object) -> object:
    """Converts the size of chunks, for which no text stands, or raises `ConversionError`."""
    if type(value) is not int:
        raise ConversionError("a valid integer", kind="int_type")
    return convert_value(ChunkSize, value)


def _convert_none(value: object) -> object:
    """Converts null, or raises `ConversionError`."""
    if value is not None:
        raise ConversionError("None", kind="none_required")
    return None


class LateChunkingParams(Struct, kw_only=True, forbid_unknown_fields=True):
    """Divides the tokens of a text into chunks, which have one vector each."""

    chunk_size: ChunkSize
    """In tokens, special ones included."""

    lax_fields: ClassVar[LaxFields] = {"chunk_size": _convert_chunk_size}


class TokenEmbeddingRequest(PromptRequest, kw_only=True):
    """The body of ``POST /v1/embeddings`` for a model of the task token_embed."""

    late_chunking_params: LateChunkingParams | None = None
    encoding_format: Literal["float"] = "float"
    embed_dtype: EmbedType = "float32"
    endianness: Endianness = "native"
    dimensions: None = None

    lax_fields: ClassVar[LaxFields] = {"input": object, "dimensions": _convert_none}

    def __post_init__(self) -> None:
        if self.input is UNSET:
            raise ConversionError("a field", "input", kind="missing")
        super().__post_init__()

    def check_prompts(self) -> None:
        """Applies the rules of late chunking."""
        if self.late_chunking_params is None:
            return
        if self.id_lists or "" in self.texts:
            raise bad_request("Late chunking requires nonempty plain-text input")
        if self.truncate_prompt_tokens is not None or self.padding == "max_length":
            raise bad_request(
                "Late chunking does not support input padding, truncation or renderer text "
                "normalization"
            )


class PoolingRequest(EncodedRequest, kw_only=True):
    """The body of ``POST /pooling``."""

    schemas: ClassVar[Sequence[str]] = ("PoolingCompletionRequest", "PoolingChatRequest")
    task: PoolingTask | None = None
    data: object = UNSET
    """Input of a vLLM plugin that parses inputs itself."""

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except ConversionError:
            if self.data is UNSET:
                raise
            self.input = UNSET
            self.messages = UNSET
            self.task = "plugin"


def _convert_prompts(value: object) -> Prompts:
    """Converts a text, texts, token ids or lists of token ids, or raises `ConversionError`."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ConversionError(
            "a string, a list of strings, or token IDs", "input", kind="string_type"
        )
    prompts: Prompts | TokenIds = value
    if set(map(type, value)) != {str}:
        try:
            prompts = convert_value(list[int] | list[list[int]], value)
        except ConversionError as error:
            raise error.prefixed("input") from None
    if prompts and isinstance(prompts[0], int):
        return [prompts]
    return cast(Prompts, prompts)


def _convert_conversations(value: object, batched: bool) -> list[Conversation] | None:
    """Returns the conversations in `value`, or None if vLLM does not accept it as conversations."""
    if not isinstance(value, list):
        return None
    conversations: list[object] = [value]
    if batched and value and all(isinstance(item, list) and item for item in value):
        conversations = value
    try:
        return [convert_messages(messages) for messages in paced(conversations)]
    except ConversionError:
        return None


class ContentPart(Struct):
    """A text or a media item."""

    type: Literal["text", "image_url", "image_embeds", "video_url"]
    text: str | None = None
    image_url: str | JsonObject | None = None
    image_embeds: str | JsonObject | None = None
    video_url: str | JsonObject | None = None

    def __post_init__(self) -> None:
        if getattr(self, self.type) is None:
            raise ConversionError(f"an object that contains {self.type}", kind="missing")

    def given(self) -> JsonObject:
        """Returns the part as the request has it."""
        return {"type": self.type, self.type: getattr(self, self.type)}


class MixedInput(Struct):
    """One input of several parts."""

    content: list[ContentPart]

    def text(self) -> str | None:
        """Returns the texts of the parts as one text; None if a part is not a text."""
        if any(part.type != "text" for part in self.content):
            return None
        return "\n".join(part.text or "" for part in self.content)


ScoreInput = str | MixedInput
ScoreInputs = ScoreInput | list[ScoreInput]


class ScoringRequest(PoolingFields, kw_only=True):
    """The common fields of score and rerank; 0 means no limit."""

    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0
    instruction: str | None = None
    chat_template_kwargs: JsonObject | None = None


class ScoreRequest(ScoringRequest, kw_only=True):
    """The body of ``POST /score``: two sides, under one of four pairs of names."""

    schemas: ClassVar[Sequence[str]] = ("ScoreRequest", "ScoreTextRequest")
    queries: ScoreInputs | UnsetType = UNSET
    documents: ScoreInputs | UnsetType = UNSET
    items: ScoreInputs | UnsetType = UNSET
    data_1: ScoreInputs | UnsetType = UNSET
    data_2: ScoreInputs | UnsetType = UNSET
    text_1: ScoreInputs | UnsetType = UNSET
    text_2: ScoreInputs | UnsetType = UNSET

    lax_fields: ClassVar[LaxFields] = {name: object for pair in SCORE_FIELD_PAIRS for name in pair}

    def __post_init__(self) -> None:
        for queries_name, documents_name in SCORE_FIELD_PAIRS:
            with suppress(ConversionError):
                queries = _convert_inputs(getattr(self, queries_name))
                self.documents = _convert_inputs(getattr(self, documents_name))
                self.queries = queries
                return
        failures: list[ConversionError] = []
        for name in chain.from_iterable(SCORE_FIELD_PAIRS):
            try:
                _convert_inputs(getattr(self, name))
            except ConversionError as error:
                failures.append(error.prefixed(name))
        raise joined(failures)


def _convert_inputs(value: object) -> ScoreInputs:
    """Converts one side of a score, or raises a `ConversionError` for each of its types. May pause.

    vLLM's type is a union: a value that fits no member has the errors of all members.
    """
    with suppress(ConversionError):
        return cast(ScoreInputs, convert_value(ScoreInputs, value))
    if value is UNSET:
        raise ConversionError("present", kind="missing")
    failures = _input_failures(value)
    if not isinstance(value, list):
        failures.append(ConversionError("a list", kind="list_type"))
        raise joined(failures)
    for number, item in enumerate(paced(value)):
        failures += [failure.prefixed(number) for failure in _item_failures(item)]
        if len(failures) > MAX_INVALID_ITEMS:
            break
    raise joined(failures)


def _item_failures(value: object) -> list[ConversionError]:
    """Returns the errors of an item of a list; none for an input."""
    if isinstance(value, dict):
        with suppress(ConversionError):
            convert_value(MixedInput, value)
            return []
    if isinstance(value, str):
        return []
    return _input_failures(value)


def _input_failures(value: object) -> list[ConversionError]:
    """Returns an error for each type of an input, in vLLM's order."""
    failures = [ConversionError("a text", kind="string_type")]
    if not isinstance(value, dict):
        failures.append(ConversionError("an object", MIXED_INPUT, kind="dict_type"))
        return failures
    try:
        convert_value(MixedInput, value)
    except ConversionError as error:
        failures.append(error.prefixed(MIXED_INPUT))
    return failures


def _convert_input(value: object) -> object:
    if isinstance(value, str | dict):
        with suppress(ConversionError):
            return convert_value(ScoreInput, value)
    raise joined(_input_failures(value))


class RerankRequest(ScoringRequest, kw_only=True):
    """The body of ``POST /rerank``; a `top_n` of 0 returns all documents."""

    query: ScoreInput
    documents: ScoreInputs
    top_n: Natural = 0

    lax_fields: ClassVar[LaxFields] = {
        "query": _convert_input,
        "documents": _convert_inputs,
    }


class RerankUsage(Struct, kw_only=True):
    """Token counts of an answer to ``POST /rerank``."""

    prompt_tokens: int
    total_tokens: int


class RerankAnswer(Struct, kw_only=True):
    """The answer to ``POST /rerank``."""

    schemas: ClassVar[Sequence[str]] = ("RerankResponse",)
    id: str
    model: str
    usage: RerankUsage
    results: Sequence[Raw]


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
        inputs = [items for items in (self.texts, self.images, self.inputs) if items is not None]
        if len(inputs) != 1 or not inputs[0]:
            raise ConversionError(
                "an object that contains exactly one non-empty list: texts, images, or inputs"
            )

    @property
    def has_images(self) -> bool:
        """True if any input has an image."""
        if self.images is not None:
            return True
        return any(part.type == "image_url" for item in self.inputs or () for part in item.content)

    def as_embedding(self, instruction: str) -> EmbeddingRequest:
        """Converts to a body of ``POST /v1/embeddings``; `instruction` precedes texts and media.

        Raises:
            ApiError: Status 400 for `max_tokens` below -1.
        """
        max_tokens = None
        if self.truncate != "NONE":
            max_tokens = -1 if self.max_tokens is None else self.max_tokens
        if max_tokens is not None and max_tokens < -1:
            raise bad_request(f"max_tokens must be at least -1, got {max_tokens}")
        request = EmbeddingRequest(
            model=self.model,
            input=[instruction + text for text in self.texts or [""]],
            dimensions=self.output_dimension,
            truncate_prompt_tokens=max_tokens,
            truncation_side="left" if self.truncate == "START" else None,
            priority=self.priority,
        )
        if self.texts is None:
            request.input = UNSET
            request.messages = [*self._conversations(instruction)]
            request.add_special_tokens = False
        return request

    def _conversations(self, instruction: str) -> Iterator[Conversation]:
        contents: list[list[JsonObject]] = [
            [{"type": "image_url", "image_url": {"url": url}}] for url in self.images or ()
        ]
        for item in self.inputs or ():
            contents.append(
                [{"type": part.type, part.type: getattr(part, part.type)} for part in item.content]
            )
        system: Conversation = []
        if instruction:
            system = [{"role": "system", "content": [{"type": "text", "text": instruction}]}]
        for content in contents:
            yield [*system, {"role": "user", "content": content}]
