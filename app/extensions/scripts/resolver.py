"""Passes requests of all families to scripts, and applies their decisions."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from msgspec.structs import replace

from app.core.api.chat.media import BuiltPrompt
from app.core.api.fault import RequestFacts
from app.core.api.plain import Recognised
from app.core.api.reply_rules import NeedsRule, ScriptedAnswer
from app.core.api.writer import ResponseWriter
from app.core.base.clock.pause import Pace, Slices
from app.core.engine.request import EngineRequest, ScriptedReply
from app.core.protocol.chat import ChatCompletionRequest, content_text
from app.core.protocol.chat import Message as WireMessage
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.validation import GenerationRequest
from app.core.server.http.context import SCOPE, RequestContext
from app.core.server.http.errors import ApiError, bad_request, sentence
from app.core.text.base import Tokenizer
from app.extensions.faults.injector import FaultInjector, facts_of
from app.extensions.scripts.matched_request import (
    MATCH_SECONDS_PER_INPUT,
    MAX_VALUE_CHARACTERS,
    MatchBudget,
    MatchedRequest,
    Message,
    Untimed,
)
from app.extensions.scripts.recorded_length import with_recorded_length
from app.extensions.scripts.rules import COUNT_TOKENS, RuleFailureError
from app.extensions.scripts.script_set import Decision, ScriptSet
from app.shared.client_names import client_name

FAMILIES = {
    "/v1/chat/completions": "chat",
    "/v1/chat/completions/batch": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/audio/transcriptions": "transcriptions",
    "/v1/audio/translations": "translations",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": COUNT_TOKENS,
    "/inference/v1/generate": "generate",
    "/vllm.grpc.engine.VllmEngine/Generate": "generate",
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embeddings",
    "/vllm.grpc.engine.VllmEngine/Embed": "embeddings",
    "/pooling": "pooling",
    "/classify": "classify",
    "/score": "score",
    "/v1/score": "score",
    "/rerank": "rerank",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
}
"""Family of each path, as rules name it."""
PROMPT_STEPS = 10
"""Steps of work per prompt, in addition to each rule's."""
NO_RETRY = {"x-should-retry": "false"}
"""Header of a 500, which SDKs of OpenAI and Anthropic would otherwise retry."""
UNMATCHED = "X-Understudy-Unmatched"
"""Header of a request with a policy, and of an answer to a request that no rule answers."""
POLICIES = ("error", "pass")
UNMATCHED_TYPE = "UnmatchedRequestError"
UNTIMED = Untimed()
"""Budget of plain requests, whose rules have few and short searches."""
UNMATCHED_HEADERS = {**NO_RETRY, UNMATCHED: "error"}


@dataclass(frozen=True, slots=True)
class ScriptResolver:
    """Asks the scripts about requests. `book` has the rules of all scripts."""

    book: ScriptSet
    tokenizer: Tokenizer
    faults: FaultInjector
    max_model_len: int
    unmatched: Callable[[], str | None]
    """Returns the setting `unmatched`."""

    def may_answer(self, context: RequestContext) -> bool:
        """Returns whether a test has set rules that may answer a request to this path."""
        if context.path not in FAMILIES:
            return False
        return bool(self.book.added.of_scope(context.headers.get(SCOPE.lower())))

    def answers_refused(self) -> bool:
        """Returns whether a rule may answer requests that vLLM rejects."""
        return self.book.answers_refused

    def direct(
        self,
        request: GenerationRequest,
        prompts: Sequence[BuiltPrompt],
        engine_requests: Sequence[EngineRequest],
        *,
        writer: ResponseWriter,
        context: RequestContext,
    ) -> list[EngineRequest]:
        """Returns `engine_requests` with the decisions of scripts. May pause.

        All choices of a prompt have the same reply.

        Raises:
            ApiError: for a fault that is an error, and where a rule cannot answer.
        """
        if not engine_requests:
            return []
        is_chat = isinstance(request, ChatCompletionRequest)
        tools = tools_of(request)
        n = engine_requests[0].n
        directed: list[EngineRequest] = []
        slices = Slices()
        budget = MatchBudget()
        for number, conversation in enumerate(self._conversations(request, prompts)):
            slices.spend(PROMPT_STEPS + self.book.rules)
            budget.extend(MATCH_SECONDS_PER_INPUT)
            choices = engine_requests[number * n : (number + 1) * n]
            first = choices[0]
            matched = request_of(context, request.model or first.model, conversation, tools)
            matched.budget = budget
            directed += self._directed(
                choices, matched, writer=writer, context=context, is_chat=is_chat
            )
        return directed

    def answer_plain(
        self, recognised: Recognised, context: RequestContext
    ) -> ScriptedAnswer | None:
        """Returns the decision of scripts about a plain request; None where no rule fires.

        Does not wait while `book.decides_at_once`: no rule has a fault then.

        Raises:
            ApiError: as `direct` does.
        """
        facts = RequestFacts(
            path=context.path,
            model=recognised.model,
            header=partial(_header_of, context),
            client=partial(client_name, context),
        )
        family = FAMILIES.get(context.path, "")
        messages = [
            Message(message.role, message.content) for message in recognised.request.conversation()
        ]
        matched = MatchedRequest(family, facts, messages, {}, budget=UNTIMED)
        rng = None
        if recognised.sampling.is_greedy or recognised.sampling.seed is not None:
            rng = repeating_source(recognised.sampling.seed, matched)
        decision = self.decide(context, matched, rng)
        if decision is None or decision.answer is None:
            return None
        answer = with_recorded_length(
            decision.answer,
            max_tokens=recognised.max_tokens,
            room=self.max_model_len - len(recognised.prompt_ids),
        )
        if family != "chat":
            answer = replace(answer, reply=reply_of(answer, is_chat=False))
        return answer

    def _directed(
        self,
        choices: Sequence[EngineRequest],
        matched: MatchedRequest,
        *,
        writer: ResponseWriter,
        context: RequestContext,
        is_chat: bool,
    ) -> Sequence[EngineRequest]:
        """Returns the choices of a prompt with the decision of scripts."""
        first = choices[0]
        rng = None
        if first.sampling.seed is not None or first.sampling.is_greedy:
            rng = repeating_source(first.sampling.seed, matched)
        decision = self.decide(context, matched, rng)
        if decision is None:
            return choices
        if decision.fault is not None:
            self.faults.apply(context, decision.fault)
        answer = decision.answer
        if answer is not None:
            answer = with_recorded_length(
                answer,
                max_tokens=first.max_tokens,
                room=self.max_model_len - len(first.prompt_ids),
                choices=first.n,
            )
            writer.usage = answer.usage or writer.usage
            writer.blocks = answer.blocks
        return apply_decision(replace(decision, answer=answer), choices, is_chat)

    def pooled(
        self,
        inputs: Iterable[Sequence[WireMessage]],
        output_kind: str,
        model: str,
        context: RequestContext,
    ) -> list[ScriptedAnswer | None]:
        """Returns the answer of scripts for each input of a pooling request.

        An answer is None where no rule applies.

        Raises:
            ApiError: as `direct` does.
        """
        answers: list[ScriptedAnswer | None] = []
        slices = Slices()
        budget = MatchBudget()
        for messages in inputs:
            budget.extend(MATCH_SECONDS_PER_INPUT)
            slices.spend(PROMPT_STEPS + self.book.rules)
            matched = request_of(context, model, messages_of(messages), {}, output_kind)
            matched.budget = budget
            decision = self.decide(context, matched)
            if decision is not None and decision.fault is not None:
                self.faults.apply(context, decision.fault)
            answers.append(None if decision is None else decision.answer)
        return answers

    def decide(
        self, context: RequestContext, request: MatchedRequest, rng: Random | None = None
    ) -> Decision | None:
        """Calls `ScriptSet.decide`.

        Raises:
            ApiError: 500, not to be retried, where the rule cannot answer; 400 where no rule
                answers a request that must have one, or the error of a `NeedsRule`.
        """
        try:
            decision = self.book.decide(request, rng)
        except RuleFailureError as error:
            raise ApiError(500, "InternalServerError", sentence(error), headers=NO_RETRY) from None
        context.rule = ""
        if decision is not None:
            context.rule = decision.rule.location
            return decision
        required = context.kept(NeedsRule)
        if required is not None:
            raise required.error
        if self._is_strict(request):
            raise ApiError(
                400, UNMATCHED_TYPE, self.book.explain_unmatched(request), headers=UNMATCHED_HEADERS
            )
        return None

    def _is_strict(self, request: MatchedRequest) -> bool:
        """Returns whether a request that no rule answers is an error.

        The header decides before the setting. Without both, replies that a test has set decide.

        Raises:
            ApiError: 400, the header has another value.
        """
        if request.api == COUNT_TOKENS:
            return False  # the server counts, as for a client that counts before each message
        text = request.facts.header(UNMATCHED)
        if text not in (None, *POLICIES):
            raise bad_request(f"{UNMATCHED} must be error or pass, got {text[:40]!r}.")
        policy = text or self.unmatched()
        if policy is not None:
            return policy == "error"
        return self.book.has_replies_for(request)

    def _conversations(
        self, request: GenerationRequest, prompts: Sequence[BuiltPrompt]
    ) -> Iterator[Sequence[Message]]:
        if isinstance(request, ChatCompletionRequest):
            yield from map(messages_of, request.conversations())
        elif isinstance(request, CompletionRequest):
            for source, prompt in zip(request.prompts(), prompts, strict=False):
                text = source if isinstance(source, str) else self.tokenizer.decode(prompt.ids)
                yield (Message("user", text),)


def apply_decision(
    decision: Decision, choices: Sequence[EngineRequest], is_chat: bool
) -> list[EngineRequest]:
    """Returns the choices of a prompt with the reply and the delays of a decision."""
    reply = None
    if decision.answer is not None:
        reply = reply_of(decision.answer, is_chat)
    delays = () if decision.fault is None else decision.fault.delays
    return [replace(choice, script=reply, delays=(*choice.delays, *delays)) for choice in choices]


def _header_of(context: RequestContext, name: str) -> str | None:
    return context.headers.get(name.lower())


def reply_of(answer: ScriptedAnswer, is_chat: bool) -> ScriptedReply:
    """Returns the reply of an answer, in the form of chats or of text completions."""
    if answer.reply.in_parts == is_chat:
        return answer.reply
    return replace(answer.reply, in_parts=is_chat)


def repeating_source(seed: int | None, request: MatchedRequest) -> Random:
    """Returns the source of random draws for a request whose reply repeats."""
    return Random(f"{seed} {request.last_text[:MAX_VALUE_CHARACTERS]}")


def tools_of(request: GenerationRequest) -> Mapping[str, object]:
    """Returns the parameters of the tools that a chat may call, by name."""
    if not isinstance(request, ChatCompletionRequest) or request.tool_choice == "none":
        return {}
    return {tool.function.name: tool.function.parameters or {} for tool in request.tools or ()}


def request_of(
    context: RequestContext,
    model: str,
    messages: Sequence[Message],
    tools: Mapping[str, object],
    output_kind: str = "",
) -> MatchedRequest:
    """Returns a request as rules match it."""
    facts = facts_of(context, model)
    pace = Pace(time.monotonic)
    family = FAMILIES.get(facts.path, "")
    matched = MatchedRequest(family, facts, messages, tools, output_kind, pace)
    required = context.kept(NeedsRule)
    matched.is_refused = required is not None and required.is_refused
    return matched


def messages_of(messages: Sequence[WireMessage]) -> list[Message]:
    """Returns role and text of each message; a tool's result has the name of the called tool."""
    tool_names: dict[str, str] = {}
    matched: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                tool_names[str(call.get("id"))] = str(function.get("name"))
        role = str(message.get("role"))
        tool = ""
        call_id = ""
        if role == "tool":
            call_id = str(message.get("tool_call_id"))
            tool = tool_names.get(call_id, "")
        matched.append(Message(role, content_text(message.get("content")), tool, call_id))
    return matched
