"""Turns a recorded exchange into rules of a script: start with `convert_conversation`."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import msgspec
from jsonschema import Draft202012Validator, SchemaError
from msgspec import Struct
from referencing import Registry

from app.extensions.recording.conversation import FAMILIES, Json, turns_of
from app.extensions.recording.exchange import (
    Exchange,
    RecordedAnswer,
    RecordedRequest,
    bytes_of,
    header_of,
)
from app.extensions.recording.literals import literal_call, literals
from app.extensions.recording.recorded_blocks import is_refused_message
from app.extensions.recording.recorded_reply import (
    BYTE_ORDER_MARK,
    RecordedReply,
    reply_of,
)
from app.extensions.recording.request_form import text_of
from config.untrusted import INVALID, UntrustedDataError, decode_untrusted, python_json

REPLAYED_FINISHES = frozenset(("length", "abort", "content_filter"))
"""Finish reasons that a rule has to set."""
USUAL_FINISHES = frozenset(("", "stop", "tool_calls", "function_call"))
"""Finish reasons that a reply has without a rule."""
MIN_PAUSE_S = 0.1
MIN_PAUSE_GAPS = 4
"""A pause is a gap between tokens above 0.1 s and above 4 times the median gap."""
MAX_RETRY_AFTER_S = 86_400
MAX_REASON_CHARACTERS = 100
USAGE_KEYS = {
    "prompt_tokens": "prompt_tokens",
    "input_tokens": "prompt_tokens",
    "completion_tokens": "completion_tokens",
    "output_tokens": "completion_tokens",
}
"""Fields of usage that a rule replaces, by their names in the APIs."""
LIMIT_KEYS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Fields of a request that limit the tokens of its reply, by precedence."""
MAX_BLOCKS_BYTES = 1 << 20
"""Most JSON of the blocks of a rule that a script accepts."""
EMPTY_TEXT = {"type": "text", "text": ""}


class ExchangeError(ValueError):
    """A rule cannot answer as an exchange was recorded; the text is the reason."""


class ToolSchemas:
    """The schemas of the tools of all requests, as far as requests agree about them.

    A script has one schema of a tool. Where requests differ, calls are checked against the schema
    of each request alone.
    """

    def __init__(self) -> None:
        self._schemas: Json = {}
        self._different: set[str] = set()

    def add(self, schemas: Json) -> None:
        """Adds the schemas of a request."""
        for name, schema in schemas.items():
            if self._schemas.setdefault(name, schema) != schema:
                self._different.add(name)

    def common(self) -> Json:
        """Returns the schemas that are the same in all requests, by name."""
        return {
            name: schema for name, schema in self._schemas.items() if name not in self._different
        }


class ConvertedExchange(Struct):
    """The rules for an exchange: one, or one for each input of an embedding.

    Attributes:
        rules: The rules.
        tools: The schemas of the request's tools, by name.
        losses: Parts of the exchange that the rules do not have.
        ignored: Remarks of a provider about the reply, such as safety ratings.
    """

    rules: list[Json]
    tools: Json = {}
    losses: list[str] = []
    ignored: list[str] = []


def convert_conversation(exchange: Exchange, name: str) -> ConvertedExchange:
    """Returns the rule for an exchange of `FAMILIES`; `name` is the name of the rule.

    Raises:
        ExchangeError: a rule cannot answer as recorded.
    """
    request = exchange.request
    path = request.target.partition("?")[0]
    api = FAMILIES.get(path)
    if api is None:
        raise ExchangeError("a script has no replies of this API")
    body = request_body(request)
    try:
        when = conditions_of(api, body)
    except INVALID as error:
        raise ExchangeError(f"the request is not valid for {api}: {reason_of(error)}") from None
    converted = ConvertedExchange([])
    is_refused = api == "messages" and is_refused_message(body)
    action = _action_of(exchange.answer, body, converted, is_refused=is_refused)
    converted.rules.append({"name": name, "when": when, "then": action})
    try:
        tools = _tools_of(body)
    except INVALID:
        tools = {}
        converted.losses.append("the schemas of tools")
    for tool, schema in tools.items():
        if _is_schema(schema):
            converted.tools[tool] = schema
        else:
            converted.losses.append(f"the invalid schema of {tool}")
    for call in action.get("tool_calls", ()):
        if not _is_allowed(call, converted.tools):
            call["unchecked"] = True  # a model may call anything
    return converted


def _is_schema(schema: Json) -> bool:
    try:
        Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError):
        return False
    return True


def _is_allowed(call: Json, tools: Json) -> bool:
    """Returns whether a script may check a call against the tools of its request."""
    if call["name"] not in tools:
        return False
    arguments = call["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = decode_untrusted(arguments, decoder=python_json)
        except UntrustedDataError:
            return False
    validator = Draft202012Validator(tools[call["name"]], registry=Registry())
    try:
        return validator.is_valid(arguments)
    except Exception:  # a schema may have any form, and refer to anything
        return False


def request_body(request: RecordedRequest) -> Json:
    """Returns the JSON object of a request.

    Raises:
        ExchangeError: it has none.
    """
    content = bytes_of(request.body).removeprefix(BYTE_ORDER_MARK)
    if not content.strip():
        raise ExchangeError("the request has no body")
    try:
        body: Json = decode_untrusted(content, type=Json)
    except UntrustedDataError as error:
        raise ExchangeError(f"the request is not a JSON object: {reason_of(error)}") from None
    return body


def reason_of(error: Exception) -> str:
    """Returns an error as text; a `KeyError` has only the key."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return " ".join(str(error).split())[:MAX_REASON_CHARACTERS]


def _tools_of(body: Json) -> Json:
    """Returns the schemas of the parameters of a request's tools."""
    tools: Json = {}
    for tool in body.get("tools") or ():
        function = tool.get("function") or tool
        schema = function.get("parameters") or function.get("input_schema")
        if schema and isinstance(function.get("name"), str):
            tools[function["name"]] = schema
    return tools


def conditions_of(api: str, body: Json) -> Json:
    """Returns the conditions for a request.

    They are the user's last message, the turn, and the tool result at the end.
    """
    turns = turns_of(api, body)
    user_turns = [turn for turn in turns if turn.get("role") == "user"]
    when: Json = {"api": api}
    if body.get("model"):  # the URL of a deployment may stand for it
        when["model"] = str(body["model"])
    if user_turns:
        when["message"] = {"role": "user", **_text_condition(user_turns[-1])}
    if len(user_turns) > 1:
        when["turn"] = len(user_turns)
    when["tool_result"] = _tool_result(turns)
    return when


def _text_condition(turn: Json) -> dict[str, str]:
    """Returns the condition on the text of a message.

    The text of a message with images also has their addresses, which may be megabytes of data: then
    the longest text in it is searched. A message of images alone has no condition.
    """
    content = turn.get("content", turn.get("output"))
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        if not all(isinstance(text, str) for text in texts):
            longest = max((text for text in texts if isinstance(text, str)), key=len, default="")
            return {"contains": longest} if longest else {}
    return {"exact": text_of(turn)}


def _tool_result(turns: Sequence[Json]) -> bool | dict[str, str]:
    """Returns the condition for the result of a tool in the last turn; False without one."""
    calls = [call for turn in turns for call in turn.get("tool_calls") or ()]
    names = {str(call.get("id")): str(call["function"]["name"]) for call in calls}
    if not turns or turns[-1].get("role") != "tool":
        return False
    result: dict[str, str] = {}
    tool = names.get(str(turns[-1].get("tool_call_id")))
    if tool:
        result["tool"] = tool
    if "content" in turns[-1]:
        result |= _text_condition(turns[-1])
    return result or True


def _action_of(
    answer: RecordedAnswer, body: Json, converted: ConvertedExchange, *, is_refused: bool
) -> Json:
    """Returns the action of a rule: a fault, or the reply with its times. Adds the losses.

    `body` is that of the request. `is_refused`: vLLM rejects the request, so the rule needs
    `blocks`.

    Raises:
        ExchangeError: the answer has no reply.
    """
    if answer.status >= 400:
        fault: Json = {"fault": fault_of(answer, converted.losses)}
        if is_refused:
            fault["blocks"] = []
        return fault
    reply = _reply_of(answer)
    action = _content_of(reply, is_refused)
    if reply.finish in REPLAYED_FINISHES:
        action["finish_reason"] = reply.finish
    elif reply.finish not in USUAL_FINISHES:
        converted.losses.append(f"finish reason {reply.finish}")
    usage = usage_of(reply.usage)
    if reply.finish == "length" and "completion_tokens" not in usage:
        # A stream without usage. A reply that ended at the limit has as many tokens.
        usage |= usage_of({"completion_tokens": _limit_of(body)})
    if usage:
        action["usage"] = usage
    if answer.is_broken:
        action["fault"] = {"action": "disconnect", "after": reply.events}
    action["delays"] = _delays(reply.moments, answer.end_s)
    converted.losses += reply.losses
    converted.ignored += reply.ignored
    return action


def _content_of(reply: RecordedReply, is_refused: bool) -> Json:
    """Returns the keys of an action with the content of a reply.

    Raises:
        ExchangeError: its blocks cannot be part of a rule.
    """
    if is_refused or reply.blocks.are_needed:
        try:
            blocks = reply.blocks.content()
            size = len(msgspec.json.encode(blocks))
        except ValueError as error:
            raise ExchangeError(f"the content of the message: {reason_of(error)}") from None
        if size > MAX_BLOCKS_BYTES:
            raise ExchangeError(f"its blocks exceed {MAX_BLOCKS_BYTES >> 20} MiB")
        return {"blocks": blocks or [EMPTY_TEXT]}
    action: Json = {}
    if reply.reasoning:
        action["reasoning"] = literals(reply.reasoning)
    if reply.text or not reply.calls:
        action["text"] = literals(reply.text)
    if reply.calls:
        action["tool_calls"] = [
            literal_call(call.name, call.arguments, call.id) for call in reply.calls
        ]
    return action


def _reply_of(answer: RecordedAnswer) -> RecordedReply:
    """Returns the reply in an answer.

    Raises:
        ExchangeError: it has none.
    """
    if not answer.body().strip() and not answer.is_broken:
        raise ExchangeError(f"the response has no body (status {answer.status})")
    try:
        reply = reply_of(answer)
    except UntrustedDataError as error:
        raise ExchangeError(f"the response is not a JSON object: {reason_of(error)}") from None
    except INVALID as error:
        raise ExchangeError(f"the response is not a reply: {reason_of(error)}") from None
    if not (reply.finish or reply.moments or answer.is_broken):
        reasons = "; ".join(reply.losses)
        raise ExchangeError(f"the response contains no reply{f' ({reasons})' if reasons else ''}")
    if not all(isinstance(call.name, str) for call in reply.calls):
        raise ExchangeError("the name of a tool call is not a text")
    if not isinstance(reply.finish, str):
        raise ExchangeError("the finish reason is not a text")
    return reply


def usage_of(usage: object) -> Json:
    """Returns the token counts that a rule can replace."""
    if not isinstance(usage, dict):
        return {}
    counts: Json = {}
    for key, name in USAGE_KEYS.items():
        count = usage.get(key)
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 1 << 31:
            counts.setdefault(name, count)
    return counts


def _limit_of(body: Json) -> object:
    """Returns the limit that a request sets for its reply; None without one."""
    limits = (body.get(key) for key in LIMIT_KEYS)
    return next((limit for limit in limits if limit is not None), None)


def fault_of(answer: RecordedAnswer, losses: list[str]) -> Json:
    """Returns the fault for an error answer. Adds to `losses`."""
    try:
        body = decode_untrusted(answer.body().removeprefix(BYTE_ORDER_MARK), type=Json)
    except UntrustedDataError:
        body = {}
        if answer.body().strip():
            losses.append("the body of the error, which is not a JSON object")
    fault = error_fault(answer.status, body.get("error", body.get("message")), losses)
    retry_after = header_of(answer.headers, "retry-after")
    if retry_after.isascii() and retry_after.isdecimal():
        fault["retry_after"] = min(int(retry_after[:9]), MAX_RETRY_AFTER_S)
    return fault


def error_fault(status: int, error: object, losses: list[str]) -> Json:
    """Returns the fault for an error; `error` is the object `error` of its body, or a text."""
    fault: Json = {"action": "error", "status": status}
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict):
        return fault
    for name in ("type", "message", "param"):
        if isinstance(error.get(name), str):
            fault[name] = error[name]
    code = error.get("code", status)
    if isinstance(code, str | int | None) and code != status:
        fault["code"] = code
    others = [str(key) for key in error if key not in ("type", "message", "param", "code")]
    if others:
        losses.append(f"fields of the error: {', '.join(others)}")
    return fault


def _delays(moments: Sequence[float], end_s: float) -> Json:
    """Returns the delays of a reply whose parts arrived at `moments`."""
    if len(moments) < 2:
        return {"first_token": f"{end_s * 1e3:.0f}ms"}
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    median_s = median(gaps)
    max_gap_s = max(MIN_PAUSE_S, MIN_PAUSE_GAPS * median_s)
    pauses = {token: gap_s - median_s for token, gap_s in enumerate(gaps, 2) if gap_s > max_gap_s}
    mean_s = (sum(gaps) - sum(pauses.values())) / len(gaps)
    delays: Json = {
        "first_token": f"{moments[0] * 1e3:.0f}ms",
        "per_token": f"{mean_s * 1e3:.1f}ms",
    }
    if pauses:
        delays["before"] = {token: f"{pause_s * 1e3:.0f}ms" for token, pause_s in pauses.items()}
    return delays
