"""`python -m app script from-recording FILE`: turns a recording into an editable script (docs/scripts.md)."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import msgspec
import yaml
from msgspec import Struct, field

from app.serving.recording.exchange import Exchange, RecordedAnswer, RecordedChunk, bytes_of
from app.serving.recording.library import recorded
from config import ConfigError
from config.flags import FlagParser
from config.installation import COMMAND

ABOUT = f"""\
Make a script of a recording ({COMMAND} record --proxy): a rule for each chat and completion, told by the
last message of the user and the result of a tool. The script is to be edited: make its conditions wider, its
replies templates.
"""
MOST_BYTES = 2 << 20
"""Largest script, in bytes."""
OWN_FINISHES = frozenset(("length", "abort", "content_filter"))
"""Finish reasons that a script must set explicitly."""
LEAST_PAUSE_S, PAUSE_GAPS = 0.1, 4
"""A pause is a gap between tokens above 0.1 s and above 4 times the median gap."""
_MARK = re.compile(r"\{[{%#]")
"""Start of a template expression."""
FAMILIES = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
Json: TypeAlias = Mapping[str, Any]
BROKEN = (msgspec.MsgspecError, AttributeError, KeyError, TypeError, ValueError)
"""Errors that a malformed body raises."""


def run(argv: Sequence[str]) -> int:
    logging.basicConfig(format="%(levelname)s: %(message)s")
    flags = FlagParser(prog=f"{COMMAND} script from-recording", description=ABOUT, allow_abbrev=False)
    flags.add_argument("file", metavar="FILE", help="the recording")
    flags.add_argument("--out", type=Path, metavar="FILE", help="a new file for the script [standard output]")
    given = flags.parse_args(argv)
    document = script_of(recorded(given.file))
    if not document["rules"]:
        raise ConfigError("the recording has no exchange that a script could answer")
    text = "# From a recording; edit it at will (docs/scripts.md).\n"
    text += yaml.safe_dump(document, allow_unicode=True, sort_keys=False, width=110)
    if len(text.encode()) > MOST_BYTES:
        print(f"WARNING: more than the {MOST_BYTES >> 20} MiB that a script may have", file=sys.stderr)
    if given.out is None:
        print(text, end="")
        return 0
    try:
        with given.out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{given.out}: cannot be written: {error.strerror or error}") from None
    return 0


def script_of(exchanges: Iterable[tuple[int, Exchange]]) -> dict[str, Any]:
    """Builds the document of a script. Prints each exchange that is left out to stderr.

    Rules with equal conditions answer once, in order, except the last. The model is a condition only if there
    are several.
    """
    rules: list[dict[str, Any]] = []
    tools: dict[str, Any] = {}
    for number, exchange in exchanges:
        request = exchange.request
        try:
            api = FAMILIES[request.target.partition("?")[0]]
            asked = msgspec.json.decode(bytes_of(request.body), type=dict[str, Any])
            when, then = _when(api, asked), _then(exchange.answer)
            offered = dict(_tools(asked.get("tools") or ()))
        except BROKEN:
            print(f"line {number}: left out: {request.method} {request.target}", file=sys.stderr)
            continue
        tools |= offered
        rules.append({"name": f"line {number}", "when": when, "then": then})
    models = {rule["when"]["model"] for rule in rules}
    seen: set[bytes] = set()
    for rule in reversed(rules):
        if len(models) == 1:
            del rule["when"]["model"]
        key = msgspec.json.encode(rule["when"])
        if key in seen:
            rule["when"]["nth"] = 1
        seen.add(key)
    return ({"tools": tools} if tools else {}) | {"rules": rules}


def _when(api: str, asked: Json) -> dict[str, Any]:
    """Returns the conditions for a request: the user's last message, the turn, the tool result at the end."""
    turns = asked["prompt"] if api == "completions" else asked["messages"]
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    names = {
        str(call.get("id")): str(call["function"]["name"])
        for turn in turns
        for call in turn.get("tool_calls") or ()
    }
    result: bool | dict[str, str] = False
    if turns and turns[-1].get("role") == "tool":
        tool = names.get(str(turns[-1].get("tool_call_id")))
        result = ({"tool": tool} if tool else {}) | {"exact": _text(turns[-1].get("content"))}
    users = [text for turn in turns if turn.get("role") == "user" and (text := _text(turn.get("content")))]
    return {
        "api": api,
        "model": str(asked.get("model") or ""),
        "message": {"role": "user", "exact": users[-1] if users else ""},
        **({"turn": len(users)} if len(users) > 1 else {}),
        "tool_result": result,
    }


def _text(content: object) -> str:
    """Joins a message's texts with line breaks, as scripts do."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def _tools(listed: Iterable[Json]) -> Iterator[tuple[str, Json]]:
    for tool in listed:
        function = tool.get("function") or tool
        if isinstance(function.get("name"), str) and isinstance(function.get("parameters"), dict):
            yield function["name"], function["parameters"]


def _then(answer: RecordedAnswer) -> dict[str, Any]:
    if answer.status >= 400:
        return {"fault": _error(answer)}
    reply = reply_of(answer)
    then: dict[str, Any] = {"reasoning": _literal(reply.reasoning)} if reply.reasoning else {}
    if reply.text or not reply.calls:
        then["text"] = _literal(reply.text)
    if reply.calls:
        then["tool_calls"] = [_call(name, arguments) for name, arguments in reply.calls]
    if reply.finish in OWN_FINISHES:
        then["finish_reason"] = reply.finish
    if answer.is_broken:
        then["fault"] = {"action": "disconnect", "after": reply.events}
    return then | {"delays": _delays(reply, answer.end_s)}


def _error(answer: RecordedAnswer) -> dict[str, Any]:
    """Builds the equivalent fault rule (docs/faults.md)."""
    fault: dict[str, Any] = {"action": "error", "status": answer.status}
    body = b"".join(bytes_of(chunk.data) for chunk in answer.chunks)
    try:
        error = msgspec.json.decode(body, type=dict[str, dict[str, Any]]).get("error", {})
    except msgspec.MsgspecError:
        return fault
    return fault | {name: error[name] for name in ("type", "message") if isinstance(error.get(name), str)}


class RecordedReply(Struct):
    """The first choice of an answer.

    `calls` holds names and arguments (JSON texts), `events` the number of stream events. `moments` holds the
    times of events with a part of the reply; vLLM sends one per token.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    finish: str = ""
    events: int = 0
    moments: list[float] = field(default_factory=list)

    def take(self, event: Json) -> bool:
        """Adds an answer, or a chunk of a stream. True if the event has a part of the reply."""
        length = 0
        for choice in event.get("choices") or ():
            if choice.get("index"):
                continue
            self.finish = choice.get("finish_reason") or self.finish
            part = choice.get("message") or choice.get("delta") or {}
            text = (choice.get("text") or "") + (part.get("content") or "")
            reasoning = part.get("reasoning") or part.get("reasoning_content") or ""
            calls = part.get("tool_calls") or ()
            self.text += text
            self.reasoning += reasoning
            for place, call in enumerate(calls):
                index, function = call.get("index"), call.get("function") or {}
                number = place if index is None else min(index, len(self.calls))
                if number == len(self.calls):
                    self.calls.append(["", ""])
                self.calls[number][0] += function.get("name") or ""
                self.calls[number][1] += function.get("arguments") or ""
            length += len(text) + len(reasoning) + len(calls)
        return length > 0


def reply_of(answer: RecordedAnswer) -> RecordedReply:
    """Parses an answer, whole or streamed. Raises one of `BROKEN` for a body that is not a reply."""
    reply, decode = RecordedReply(), msgspec.json.Decoder(dict[str, Any]).decode
    if answer.header("content-type").lower().startswith("text/event-stream"):
        for at_s, data in _events(answer.chunks):
            reply.events += 1
            if reply.take(decode(data)):
                reply.moments.append(at_s)
    else:
        reply.take(decode(b"".join(bytes_of(chunk.data) for chunk in answer.chunks)))
    return reply


def _events(chunks: Sequence[RecordedChunk]) -> Iterator[tuple[float, bytes]]:
    """Yields time and data of each event of a stream, without the final [DONE]."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + bytes_of(chunk.data)).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                yield chunk.at_s, data


def _call(name: str, arguments: str) -> dict[str, Any]:
    try:
        return {
            "name": name,
            "arguments": _literals(msgspec.json.decode(arguments or "{}", type=dict[str, Any])),
        }
    except msgspec.MsgspecError:  # scripts cannot make malformed arguments
        return {"name": name, "unchecked": True}


def _literals(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _literals(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_literals(item) for item in value]
    return _literal(value) if isinstance(value, str) else value


def _literal(text: str) -> str:
    """Escapes template syntax, so that the template renders `text`."""
    return _MARK.sub(lambda found: "{{ '" + found[0] + "' }}", text)


def _delays(reply: RecordedReply, end_s: float) -> dict[str, Any]:
    """Returns delays of the first token, of each later token, and of pauses."""
    moments = reply.moments
    if len(moments) < 2:
        return {"first_token": f"{end_s * 1e3:.0f}ms"}
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    usual_s = median(gaps)
    pauses = {
        token: gap - usual_s
        for token, gap in enumerate(gaps, 2)
        if gap > max(LEAST_PAUSE_S, PAUSE_GAPS * usual_s)
    }
    each_s = (sum(gaps) - sum(pauses.values())) / len(gaps)
    delays: dict[str, Any] = {
        "first_token": f"{moments[0] * 1e3:.0f}ms",
        "per_token": f"{each_s * 1e3:.1f}ms",
    }
    before = {token: f"{pause_s * 1e3:.0f}ms" for token, pause_s in pauses.items()}
    return delays | ({"before": before} if before else {})
