"""Passes requests of any family to scripts, and applies their decisions."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from msgspec.structs import replace

from app.base.clock.pause import Pace, Slices
from app.engine.core.request import EngineRequest
from app.serving.api.chat.media import BuiltPrompt
from app.serving.api.reply_rules import ScriptedAnswer
from app.serving.api.writer import ResponseWriter
from app.serving.faults.injector import FaultInjector, facts_of
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError
from app.serving.protocol.chat import BatchChatRequest, ChatCompletionRequest, content_text
from app.serving.protocol.chat import Message as WireMessage
from app.serving.protocol.completions import CompletionRequest
from app.serving.protocol.validation import GenerationRequest
from app.serving.scripts.matched_request import (
    MATCH_SECONDS_PER_INPUT,
    MAX_VALUE_CHARACTERS,
    MatchBudget,
    MatchedRequest,
    Message,
)
from app.serving.scripts.rules import RuleFailureError
from app.serving.scripts.script_set import Decision, ScriptSet
from app.text.base import Tokenizer

FAMILIES = {
    **dict.fromkeys(("/v1/chat/completions", "/v1/chat/completions/batch"), "chat"),
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    **dict.fromkeys(
        ("/inference/v1/generate", "/vllm.grpc.engine.VllmEngine/Generate"), "generate"
    ),
    **dict.fromkeys(("/v1/embeddings", "/v2/embed"), "embeddings"),
    "/vllm.grpc.engine.VllmEngine/Embed": "embeddings",
    "/pooling": "pooling",
    "/classify": "classify",
    **dict.fromkeys(("/score", "/v1/score"), "score"),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), "rerank"),
}
PROMPT_STEPS = 10
"""Steps of work per prompt, in addition to each rule's own."""
NO_RETRY = {"x-should-retry": "false"}
"""Header of a 500, which SDKs of OpenAI and Anthropic would otherwise retry."""


@dataclass(frozen=True, slots=True)
class ScriptResolver:
    book: ScriptSet
    tokenizer: Tokenizer
    faults: FaultInjector

    def direct(
        self,
        asked: GenerationRequest,
        prompts: Sequence[BuiltPrompt],
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        context: RequestContext,
    ) -> list[EngineRequest]:
        """Returns `requests` with the decisions of scripts; all choices of a prompt have the same
        reply.

        ApiError for a fault that is an error, and where a rule cannot answer. May pause.
        """
        if not requests:
            return []
        chat = asked if isinstance(asked, ChatCompletionRequest) else None
        tools: Mapping[str, object] = {}
        if chat is not None and chat.tool_choice != "none":
            tools = {
                tool.function.name: tool.function.parameters or {} for tool in chat.tools or ()
            }
        directed: list[EngineRequest] = []
        slices = Slices()
        budget = MatchBudget()
        for number, conversation in enumerate(self._conversations(asked, prompts)):
            slices.spend(PROMPT_STEPS + self.book.rules)
            budget.extend(MATCH_SECONDS_PER_INPUT)
            first = requests[number * requests[0].n]
            own = requests[number * first.n : (number + 1) * first.n]
            seen = request_of(context, asked.model or first.model, conversation, tools)
            seen.budget = budget
            repeats = first.seed is not None or first.greedy
            rng = (
                Random(f"{first.seed} {seen.last_text[:MAX_VALUE_CHARACTERS]}") if repeats else None
            )
            decision = self.decide(context, seen, rng)
            if decision is None:
                directed += own
                continue
            fault, answer, reply = decision.fault, decision.answer, None
            if fault is not None:
                self.faults.apply(context, fault)
            if answer is not None:
                writer.usage = answer.usage or writer.usage
                reply = replace(answer.reply, in_parts=chat is not None)
            delays = () if fault is None else fault.delays
            directed += [replace(one, script=reply, delays=(*one.delays, *delays)) for one in own]
        return directed

    def pooled(
        self,
        inputs: Iterable[Sequence[WireMessage]],
        wants: str,
        model: str,
        context: RequestContext,
    ) -> list[ScriptedAnswer | None]:
        """Returns the answer of scripts for each input of a pooling request; None where no rule
        applies.

        Raises ApiError like `direct`.
        """
        answers: list[ScriptedAnswer | None] = []
        slices = Slices()
        budget = MatchBudget()
        for messages in inputs:
            budget.extend(MATCH_SECONDS_PER_INPUT)
            slices.spend(PROMPT_STEPS + self.book.rules)
            seen = request_of(context, model, messages_of(messages), {}, wants)
            seen.budget = budget
            decision = self.decide(context, seen)
            if decision is not None and decision.fault is not None:
                self.faults.apply(context, decision.fault)
            answers.append(None if decision is None else decision.answer)
        return answers

    def decide(
        self, context: RequestContext, request: MatchedRequest, own: Random | None = None
    ) -> Decision | None:
        """Calls `ScriptSet.decide`.

        ApiError 500, not to be retried, where the rule cannot answer.
        """
        try:
            decision = self.book.decide(request, own)
            context.rule = "" if decision is None else decision.rule.location
            return decision
        except RuleFailureError as error:
            raise ApiError(500, "InternalServerError", f"{error}.", headers=NO_RETRY) from None

    def _conversations(
        self, asked: GenerationRequest, prompts: Sequence[BuiltPrompt]
    ) -> Iterator[Sequence[Message]]:
        if isinstance(asked, BatchChatRequest):
            yield from map(messages_of, asked.messages)
        elif isinstance(asked, ChatCompletionRequest):
            yield messages_of(asked.messages)
        elif isinstance(asked, CompletionRequest):
            for given, prompt in zip(asked.prompts(), prompts, strict=False):
                text = given if isinstance(given, str) else self.tokenizer.decode(prompt.ids)
                yield (Message("user", text),)


def request_of(
    context: RequestContext,
    model: str,
    messages: Sequence[Message],
    tools: Mapping[str, object],
    wants: str = "",
) -> MatchedRequest:
    facts = facts_of(context, model)
    return MatchedRequest(
        FAMILIES.get(facts.path, ""), facts, messages, tools, wants, Pace(time.monotonic)
    )


def messages_of(messages: Sequence[WireMessage]) -> list[Message]:
    """Role and text of each message; a tool's result has the name of the called tool."""
    called: dict[str, str] = {}
    found: list[Message] = []
    for message in messages:
        role, calls = str(message.get("role")), message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                called[str(call.get("id"))] = str(function.get("name"))
        tool = called.get(str(message.get("tool_call_id")), "") if role == "tool" else ""
        found.append(Message(role, content_text(message.get("content")), tool))
    return found
