"""The bodies of the pooling routes embeddings, pooling and classify (vllm-api.md section 8).

One struct holds both forms of a request, texts and conversations. A value that fits neither form is reported
as a wrong ``input``, as vLLM does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, cast

from msgspec import UNSET, Meta, Struct, UnsetType

from app.http.errors import bad_request
from app.protocol.coercion import Misfit, convert
from app.protocol.messages import Message, convert_messages, is_plain
from app.protocol.options import CacheSalt, Int64
from app.protocol.request import Request
from app.protocol.validation import rules

MAX_INPUTS = 65_536
"""Texts, conversations or documents of one request."""
MAX_DIMENSIONS = 65_536

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]
EmbedDtype = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Endianness = Literal["native", "big", "little"]
PoolingTask = Literal["embed", "classify", "token_embed", "token_classify", "plugin", "embed&token_classify"]
REMOVED_TASKS = frozenset(("score", "encode"))

TokenIds = list[int]
Prompts = list[str] | list[TokenIds]
Conversation = list[Message]


def as_it_is(value: Any) -> Any:
    """The lax conversion of a field whose form depends on others."""
    return value


class PoolingFields(Request, kw_only=True):
    """What every pooling request has."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    padding: Literal["max_length", "do_not_pad"] | None = None
    truncation_side: Literal["left", "right"] | None = None
    request_id: str = ""
    """Empty when the client gave none: vLLM draws a random one."""
    priority: Int64 = 0
    mm_processor_kwargs: dict[str, Any] | None = None
    cache_salt: CacheSalt | None = None
    use_activation: bool | None = None
    """None is the model's own way."""

    @staticmethod
    def check_rules(request: Any) -> None:
        rules.check_cache_salt(request.cache_salt)

    def kept(self, ids: TokenIds, max_model_len: int) -> TokenIds:
        """The part of `ids` that `truncate_prompt_tokens` keeps: the begin, or the end with side "left"."""
        keep = self.truncate_prompt_tokens
        if keep is None or keep >= len(ids):
            return ids
        keep = max_model_len if keep < 0 else keep
        return ids[max(0, len(ids) - keep) :] if self.truncation_side == "left" else ids[:keep]


class ClassificationRequest(PoolingFields, kw_only=True):
    """Texts, token ids or a conversation; after decoding one of the properties has them."""

    input: str | list[str | int | list[int | Message] | Message] | UnsetType = UNSET
    messages: list[Message | list[Message]] | UnsetType = UNSET
    add_special_tokens: bool | UnsetType = UNSET
    """Never UNSET after decoding: true for texts, false for conversations, whose template adds its own."""
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    normalize: Any = UNSET
    """Gone from vLLM; naming it is an error."""
    task: Any = None

    lax: ClassVar[Mapping[str, Any]] = {"input": as_it_is, "messages": as_it_is}
    absent: ClassVar[Mapping[str, Any]] = {"normalize": UNSET}
    batched: ClassVar[bool] = False
    """Several conversations are possible, also as `input`."""

    def __post_init__(self) -> None:
        chats = _conversations(self.messages, self.batched)
        if chats is None and self.batched and self.input:
            chats = _conversations(self.input, True)
        if chats is None:
            self.input, self.messages = cast(Any, _prompts(self.input)), UNSET
        else:
            self.input, self.messages = UNSET, cast(Any, chats)
        if self.add_special_tokens is UNSET:
            self.add_special_tokens = chats is None

    @property
    def conversations(self) -> list[Conversation]:
        """The conversations; none when the request has texts or token ids."""
        return cast("list[Conversation]", self.messages or [])

    @property
    def texts(self) -> list[str]:
        """The texts; none when the request has something else."""
        return cast("list[str]", self.input) if self.input and isinstance(self.input[0], str) else []

    @property
    def id_lists(self) -> list[TokenIds]:
        """The lists of token ids; none when the request has something else."""
        return cast("list[TokenIds]", self.input) if self.input and isinstance(self.input[0], list) else []

    def check(self) -> None:
        self.check_rules(self)

    @staticmethod
    def check_rules(request: Any) -> None:
        if request.normalize is not UNSET:
            raise bad_request("normalize is no longer known: use_activation has taken its place", "normalize")
        if isinstance(request.task, str) and request.task in REMOVED_TASKS:
            raise bad_request(f"task {request.task!r} is no longer known", "task")
        PoolingFields.check_rules(request)
        rules.check_continuation(request)


class EncodedRequest(ClassificationRequest, kw_only=True):
    """A request whose answer has vectors; the first three fields say how they are written."""

    encoding_format: EncodingFormat = "float"
    embed_dtype: EmbedDtype = "float32"
    """For base64 and bytes only."""
    endianness: Endianness = "native"
    """For base64 and bytes only."""
    dimensions: int | None = None


class EmbeddingRequest(EncodedRequest, kw_only=True):
    """The body of ``POST /v1/embeddings``."""

    batched: ClassVar[bool] = True


class PoolingRequest(EncodedRequest, kw_only=True):
    """The body of ``POST /pooling``."""

    task: PoolingTask | None = None


class _Ids(Struct):
    """For the lax conversion of token ids."""

    input: list[int] | list[list[int]]


def _prompts(value: Any) -> Prompts:
    """`value` in one of its four forms, as a list; raises `Misfit`."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise Misfit("a text, texts, token ids or lists of them", "input")
    kinds = set(map(type, value))
    if kinds != {str} and kinds != {int} and (kinds != {list} or not _are_ids(value)):
        value = convert(_Ids, {"input": value}).input
    return [value] if value and isinstance(value[0], int) else value


def _are_ids(lists: Sequence[list[Any]]) -> bool:
    return set(map(type, chain.from_iterable(lists))) <= {int}


def _conversations(value: Any, batched: bool) -> list[Conversation] | None:
    """The conversations in `value`; None when it is none, or one that vLLM would not take."""
    if not isinstance(value, list):
        return None
    many = batched and bool(value) and all(isinstance(chat, list) and chat for chat in value)
    chats = value if many else [value]
    try:
        for chat in chats:
            if not all(isinstance(message, dict) and is_plain(message) for message in chat):
                convert_messages(chat)
    except Misfit:
        return None
    return chats
