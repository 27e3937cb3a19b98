"""Bodies of constant replies to plain chats, which are rendered once.

Such bodies differ only in id, time and tokens of the prompt. Start with `PreparedReplies.body`.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct

from app.core.api.chat.writer import ChatResponseOptions, ChatWriter
from app.core.api.identity import ResponseMeta
from app.core.api.plain import PlainChat, Recognised
from app.core.engine.client import EngineClient
from app.core.engine.engine import Engine
from app.core.engine.outputs import EngineOutput, Started, Tokens
from app.core.engine.request import EngineRequest, Reply, ScriptedReply
from app.core.protocol.common import HOLE, encode, template
from app.core.text.memo import LimitedDict, RecentKeys

LIMIT_BYTES = 1 << 20
"""Maximum memory of prepared replies."""
PREPARED_BYTES = 1000
"""Memory of a prepared reply beside its body and its tokens, an upper bound."""
TOKEN_BYTES = 150
"""Memory of a token of a prepared reply, an upper bound."""
MAX_CHARACTERS = 4096
"""Longest text of a prepared reply."""
Key = tuple[int, int]
"""Identity of the scripted reply, and the limit of the request."""


class PreparedReply(Struct, frozen=True):
    """The tokens of a reply, and the parts of its body between the fields that differ."""

    script: ScriptedReply
    """Kept, as its identity is in the key."""
    reply: Reply
    before_id: bytes
    before_created: bytes
    before_prompt_tokens: bytes
    before_total_tokens: bytes
    end: bytes

    @property
    def size_bytes(self) -> int:
        """Estimated memory, an upper bound."""
        body_bytes = len(self.before_id) + len(self.before_created) + len(self.end)
        return PREPARED_BYTES + body_bytes + TOKEN_BYTES * len(self.reply.ids)

    def body(self, meta: ResponseMeta, prompt_tokens: int) -> bytes:
        """Returns the body of an answer."""
        return b"%b%b%b%d%b%d%b%d%b" % (
            self.before_id,
            encode(meta.id),
            self.before_created,
            meta.created,
            self.before_prompt_tokens,
            prompt_tokens,
            self.before_total_tokens,
            prompt_tokens + len(self.reply.ids),
            self.end,
        )


class PreparedReplies(LimitedDict[Key, PreparedReply]):
    """Prepared replies, from the second use of a reply with the same limit."""

    def __init__(self, engine: EngineClient) -> None:
        super().__init__(LIMIT_BYTES)
        self._engine = engine
        self._seen = RecentKeys()

    def clear(self) -> None:
        """Forgets all bodies, which depend on settings."""
        super().clear()
        self.size_bytes = 0

    def body(
        self, engine_request: EngineRequest, meta: ResponseMeta, recognised: Recognised
    ) -> bytes | None:
        """Returns the body of the answer to a request with a scripted reply, if it is known.

        The engine has then counted the reply. Returns None if the request has to be submitted.

        Raises:
            EngineError: as `EngineClient.submit`.
        """
        script = engine_request.script
        assert script is not None
        request = recognised.request
        if request.stream or recognised.stop or recognised.logprobs is not None:
            return None
        key = (id(script), engine_request.max_tokens)
        prepared = self.get(key)
        engine = self._engine
        if prepared is None:
            if not isinstance(engine, Engine):  # the replies of other ranks are not known here
                return None
            if not is_simple(script, recognised) or not self._seen.has(repr(key)):
                return None
            reply = engine.model.reply(engine_request)
            prepared = prepare(script, reply, meta, recognised)
            self.add(key, prepared, prepared.size_bytes)
        if not engine.reply_at_once(engine_request, prepared.reply, _ignore):
            return None
        return prepared.body(meta, len(engine_request.prompt_ids))


def prepare(
    script: ScriptedReply, reply: Reply, meta: ResponseMeta, recognised: Recognised
) -> PreparedReply:
    """Returns a reply with its body, which has holes in the fields that differ."""
    writer = ChatWriter(meta, cast(ChatResponseOptions, recognised.options))
    writer.collect(Started(0, 0.0))
    writer.collect(Tokens(0, reply.texts, reply.ids, 0.0, finish=reply.finish))
    answer: Any = writer.whole()
    answer.id = HOLE
    answer.created = HOLE
    answer.usage.prompt_tokens = HOLE
    answer.usage.total_tokens = HOLE
    return PreparedReply(script, reply, *template(answer))


def is_simple(script: ScriptedReply, recognised: Recognised) -> bool:
    """Returns whether all answers with a reply differ only in id, time and prompt tokens."""
    options = recognised.options
    has_more_than_text = script.passes or script.calls or script.reasoning
    has_delays = script.first_token_s or script.per_token_s or script.token_delays
    return (
        isinstance(recognised.request, PlainChat)
        and not has_more_than_text
        and not has_delays
        and len(script.text) <= MAX_CHARACTERS
        and not options.metrics
        and not options.prompt_details
    )


def _ignore(output: EngineOutput) -> None:
    """Emits nothing: the body is known."""
