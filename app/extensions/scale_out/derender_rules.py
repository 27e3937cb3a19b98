"""Rules that make a derendered answer equal to the generated one, if the version has them."""

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from msgspec.structs import replace

from app.core.api.logprobs import ALL
from app.core.api.pipeline import RequestPipeline
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.completions import CompletionRequest
from app.core.server.http.errors import bad_request
from app.extensions.scale_out import derender_protocol as derender
from app.extensions.scale_out.rules import rules_of

AnsweredRequest = ChatCompletionRequest | CompletionRequest | None


class Ending(NamedTuple):
    """Tokens of a reply that have a text, and the token or string that stopped it."""

    token_ids: Sequence[int]
    stop_reason: str | int | None


class Reply(NamedTuple):
    """Text of a whole reply, and the token or string that stopped it."""

    text: str
    stop_reason: str | int | None


def ending_of(
    pipeline: RequestPipeline, choice: derender.RenderedChoice, request: AnsweredRequest
) -> Ending:
    """Leaves out the token that stopped the reply, unless the request includes it.

    An answer without a stop reason may come from a server that does not report it.
    """
    token_ids = choice.token_ids or []
    stop_reason = choice.stop_reason
    unchanged = Ending(token_ids, stop_reason)
    if not rules_of(pipeline).derenders_as_generated or not token_ids:
        return unchanged
    if choice.finish_reason != "stop" or isinstance(stop_reason, str):
        return unchanged
    last_id = token_ids[-1]
    if stop_reason is None:
        ends_text = last_id in pipeline.tokenizer.eos_token_ids
        if request is not None and request.ignore_eos:
            ends_text = False
        if not ends_text:
            if request is None or last_id not in (request.stop_token_ids or ()):
                return unchanged
            stop_reason = last_id
    elif last_id != stop_reason:
        return unchanged
    if request is not None and request.include_stop_str_in_output:
        return Ending(token_ids, stop_reason)
    return Ending(token_ids[:-1], stop_reason)


def reply_of(
    pipeline: RequestPipeline,
    choice: derender.RenderedChoice,
    request: AnsweredRequest,
    skips_special: bool,
) -> Reply:
    """Returns the text of a whole reply, cut at the string that stopped it."""
    ending = ending_of(pipeline, choice, request)
    decode = pipeline.tokenizer.decode
    text = decode(ending.token_ids, skips_special)
    reported = choice.stop_reason
    if choice.finish_reason != "stop" or isinstance(reported, int):
        return Reply(text, ending.stop_reason)
    if not rules_of(pipeline).derenders_as_generated:
        return Reply(text, ending.stop_reason)
    stops = stop_strings(request)
    if reported is not None:
        stops = [reported]
    first_character = 0
    if request is not None and request.min_tokens:
        first_character = len(decode(ending.token_ids[: request.min_tokens], skips_special))
    ends_by_stop: list[tuple[int, str]] = []
    for stop in stops:
        start = text.find(stop, max(0, first_character + 1 - len(stop)))
        if start >= 0:
            ends_by_stop.append((start + len(stop), stop))
    if not ends_by_stop:
        return Reply(text, ending.stop_reason)
    end, matched = min(ends_by_stop, key=itemgetter(0))
    if request is None or not request.include_stop_str_in_output:
        end -= len(matched)
    return Reply(text[:end], matched)


def stop_strings(request: AnsweredRequest) -> Sequence[str]:
    """Returns the strings that stop a reply to `request`."""
    if request is None or not request.stop:
        return []
    if isinstance(request.stop, str):
        return [request.stop]
    return [stop for stop in request.stop if stop]


def check_streamed_stops(pipeline: RequestPipeline, request: AnsweredRequest) -> None:
    """Raises ApiError 400 for a stream of a request with stop strings, if they are followed."""
    if rules_of(pipeline).derenders_as_generated and request is not None and request.stop:
        raise bad_request(
            "derender does not support stop strings in a stream, because text cannot be withdrawn "
            "after it is sent; send the complete response, or generate with output_mode=text"
        )


def shown_logprobs(
    pipeline: RequestPipeline, logprobs: derender.Logprobs | None, request: AnsweredRequest
) -> derender.Logprobs | None:
    """Returns log probabilities with as many alternatives as a generated answer has."""
    if logprobs is None or logprobs.content is None or request is None:
        return logprobs
    if not rules_of(pipeline).derenders_as_generated:
        return logprobs
    count = shown_alternatives(request)
    if count == ALL:
        return logprobs
    entries = []
    for entry in logprobs.content:
        entries.append(replace(entry, top_logprobs=entry.top_logprobs[:count]))
    return derender.Logprobs(content=entries)


def shown_alternatives(request: ChatCompletionRequest | CompletionRequest) -> int:
    """Returns how many alternatives a log probability shows in an answer to `request`."""
    if request.logprob_token_ids:
        return ALL
    if isinstance(request, ChatCompletionRequest):
        if not request.logprobs:
            return ALL
        return request.top_logprobs or 0
    if request.logprobs is None or request.logprobs == ALL:
        return ALL
    return request.logprobs + 1


def shows_token_ids(pipeline: RequestPipeline, request: AnsweredRequest) -> bool:
    """Returns whether an answer to `request` repeats the token ids of its prompt."""
    if request is None or not rules_of(pipeline).derenders_as_generated:
        return False
    return bool(request.return_token_ids)
