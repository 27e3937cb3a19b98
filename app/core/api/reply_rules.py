"""The port for rules that decide the replies to requests; the extension `scripts` implements it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from msgspec import Struct

from app.core.engine.request import EngineRequest, ScriptedReply
from app.core.protocol.common import Blocks, UsageOverrides

if TYPE_CHECKING:
    from app.core.api.chat.media import BuiltPrompt
    from app.core.api.writer import ResponseWriter
    from app.core.protocol.chat import Message
    from app.core.protocol.validation import GenerationRequest
    from app.core.server.http.context import RequestContext
    from app.core.server.http.errors import ApiError

Classes: TypeAlias = tuple[float, ...] | Mapping[str, float]
"""Probabilities of classes, in order or by name."""


class ScriptedAnswer(Struct, frozen=True, kw_only=True):
    """Decision of a rule about the answer to one input."""

    reply: ScriptedReply
    usage: UsageOverrides | None = None
    embedding: tuple[float, ...] | str | None = None
    """A vector, or a text to be embedded."""
    score: float | None = None
    classes: Classes | None = None
    blocks: Blocks | None = None


class NeedsRule(Struct, frozen=True):
    """Attached to a request that is an error unless a rule answers it.

    `is_refused`: vLLM rejects the request, so only rules with recorded blocks may answer it.
    """

    error: ApiError
    is_refused: bool = False


class ReplyRules(Protocol):
    """Decides the replies to requests before the engine gets them."""

    def may_answer(self, context: RequestContext) -> bool:
        """Returns whether a test has set rules that may answer a request to this path."""

    def answers_refused(self) -> bool:
        """Returns whether a rule may answer requests that vLLM rejects."""

    def direct(
        self,
        request: GenerationRequest,
        prompts: Sequence[BuiltPrompt],
        engine_requests: Sequence[EngineRequest],
        *,
        writer: ResponseWriter,
        context: RequestContext,
    ) -> list[EngineRequest]:
        """Returns `engine_requests` with the decisions of the rules.

        Raises:
            ApiError: a rule answers with an error, or cannot answer.
        """

    def answer_plain(self, recognised: Any, context: RequestContext) -> ScriptedAnswer | None:
        """Returns the decision of the rules about a plain request; None where no rule fires.

        Never waits. `recognised` is the `Recognised` of `app.core.api.plain`.

        Raises:
            ApiError: as `direct`.
        """

    def pooled(
        self,
        inputs: Iterable[Sequence[Message]],
        output_kind: str,
        model: str,
        context: RequestContext,
    ) -> list[ScriptedAnswer | None]:
        """Returns the decision about each input of a pooling request; None where no rule fires.

        Raises:
            ApiError: as `direct`.
        """
