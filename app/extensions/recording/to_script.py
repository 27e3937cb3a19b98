"""`python -m app script from-recording FILE`: turns a recording into an editable script.

See docs/scripts.md.
"""

import logging
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import msgspec
import yaml

from app.core.base.error_body import error_fields
from app.extensions.recording.conversation import FAMILIES, turns_of
from app.extensions.recording.exchange import Exchange, RecordedAnswer, bytes_of
from app.extensions.recording.lines import recorded
from app.extensions.recording.recorded_reply import INVALID_REPLY, reply_of
from app.extensions.recording.request_form import text_of
from config import ConfigError
from config.declaration import COMMAND
from config.flags import FlagParser
from config.untrusted import UntrustedDataError, decode_untrusted

DESCRIPTION = f"""\
Create a script from a recording ({COMMAND} record --proxy): one rule for each chat and completion,
which matches the last message of the user and the result of a tool. Edit the script: widen its
conditions, and turn its replies into templates.
"""
MAX_SCRIPT_BYTES = 2 << 20
"""Largest script that a server reads, in bytes."""
REPLAYED_FINISHES = frozenset(("length", "abort", "content_filter"))
"""Finish reasons that a rule has to set."""
MIN_PAUSE_S = 0.1
MIN_PAUSE_GAPS = 4
"""A pause is a gap between tokens above 0.1 s and above 4 times the median gap."""
MAX_ESCAPES = 100
"""Most expressions in an escaped text; a text with more template syntax becomes a single literal.
"""
_MARK = re.compile(r"\{[{%#]")
"""Start of template syntax."""
Json: TypeAlias = dict[str, Any]


def run(argv: Sequence[str]) -> int:
    """Runs the command, whose second word comes first; returns the exit status.

    Raises:
        ConfigError: the recording cannot be read, or the script cannot be written.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s")
    flags = FlagParser(
        prog=f"{COMMAND} script from-recording", description=DESCRIPTION, allow_abbrev=False
    )
    flags.add_argument("file", metavar="FILE", help="the recording")
    flags.add_argument(
        "--out", type=Path, metavar="FILE", help="a new file for the script [standard output]"
    )
    options = flags.parse_args(argv[1:])
    document = script_of(recorded(options.file))
    if not document["rules"]:
        raise ConfigError("the recording contains no exchanges that a script can replay")
    write_script(document, options.out, "# From a recording")
    return 0


def write_script(document: Json, out: Path | None, title: str) -> None:
    """Writes a script to a new file, or to standard output without one.

    Raises:
        ConfigError: the file exists, or cannot be written.
    """
    text = f"{title}; edit it at will (docs/scripts.md).\n"
    text += yaml.safe_dump(document, allow_unicode=True, sort_keys=False, width=110)
    if len(text.encode()) > MAX_SCRIPT_BYTES:
        print(
            f"WARNING: more than the {MAX_SCRIPT_BYTES >> 20} MiB that a script may have",
            file=sys.stderr,
        )
    if out is None:
        print(text, end="")
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror or error}") from None


def script_of(exchanges: Iterable[tuple[int, Exchange]]) -> Json:
    """Builds a script from exchanges and their line numbers.

    Rules with equal conditions answer once, in order; stderr names exchanges left out.
    """
    rules: list[Json] = []
    tools: Json = {}
    for number, exchange in exchanges:
        request = exchange.request
        try:
            rule, body = rule_of(exchange, f"line {number}")
            tools |= tools_of(body)
        except INVALID_REPLY:
            print(f"line {number}: left out: {request.method} {request.target}", file=sys.stderr)
            continue
        rules.append(rule)
    _drop_common_model(rules)
    distinguish(rules)
    script: Json = {}
    if tools:
        script["tools"] = tools
    script["rules"] = rules
    return script


def rule_of(exchange: Exchange, name: str) -> tuple[Json, Json]:
    """Returns the rule for an exchange, and the body of its request.

    Raises:
        one of INVALID_REPLY: a rule cannot answer as recorded.
    """
    request = exchange.request
    api = FAMILIES[request.target.partition("?")[0]]
    body = decode_untrusted(bytes_of(request.body), type=Json)
    rule: Json = {"name": name, "when": _when(api, body), "then": _then(exchange.answer)}
    return rule, body


def tools_of(body: Json) -> Json:
    """Returns the schemas of the parameters of a request's tools."""
    tools: Json = {}
    for tool in body.get("tools") or ():
        function = tool.get("function") or tool
        schema = function.get("parameters") or function.get("input_schema")
        if schema and isinstance(function.get("name"), str):
            tools[function["name"]] = schema
    return tools


def _drop_common_model(rules: Sequence[Json]) -> None:
    """Removes the condition on the model if all rules have the same."""
    if len({rule["when"]["model"] for rule in rules}) == 1:
        for rule in rules:
            del rule["when"]["model"]


def distinguish(rules: Sequence[Json]) -> None:
    """Limits all but the last of rules with equal conditions, so that they answer one by one."""
    keys: set[bytes] = set()
    for rule in reversed(rules):
        key = msgspec.json.encode(rule["when"])
        if key in keys:
            rule["times"] = 1
        keys.add(key)


def _when(api: str, body: Json) -> Json:
    """Returns the conditions for a request.

    They are the user's last message, the turn, and the tool result at the end.
    """
    turns = turns_of(api, body)
    texts = [text_of(turn) for turn in turns if turn.get("role") == "user"]
    user_texts = [text for text in texts if text]
    when: Json = {
        "api": api,
        "model": str(body.get("model") or ""),
        "message": {"role": "user", "exact": user_texts[-1] if user_texts else ""},
    }
    if len(user_texts) > 1:
        when["turn"] = len(user_texts)
    when["tool_result"] = _tool_result(turns)
    return when


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
    result["exact"] = text_of(turns[-1])
    return result


def _then(answer: RecordedAnswer) -> Json:
    """Returns the action of a rule: a fault, or the reply with its times.

    Raises:
        one of INVALID_REPLY: the answer has no reply.
    """
    if answer.status >= 400:
        return {"fault": _error_fault(answer)}
    reply = reply_of(answer)
    if not (reply.finish or reply.moments or answer.is_broken):
        raise ValueError("the response contains no reply")
    action: Json = {}
    if reply.reasoning:
        action["reasoning"] = literals(reply.reasoning)
    if reply.text or not reply.calls:
        action["text"] = literals(reply.text)
    if reply.calls:
        action["tool_calls"] = [_call(name, arguments) for name, arguments in reply.calls]
    if reply.finish in REPLAYED_FINISHES:
        action["finish_reason"] = reply.finish
    if answer.is_broken:
        action["fault"] = {"action": "disconnect", "after": reply.events}
    action["delays"] = _delays(reply.moments, answer.end_s)
    return action


def _error_fault(answer: RecordedAnswer) -> Json:
    fault: Json = {"action": "error", "status": answer.status}
    error = error_fields(answer.body())
    for name in ("type", "message"):
        if isinstance(error.get(name), str):
            fault[name] = error[name]
    return fault


def _call(name: object, arguments: str) -> Json:
    if not isinstance(name, str):
        raise TypeError("a tool name must be a string")
    try:
        values = decode_untrusted(arguments or "{}", type=Json)
    except UntrustedDataError:  # scripts cannot create malformed arguments
        return {"name": name, "unchecked": True}
    return {"name": name, "arguments": literals(values)}


def literals(value: Any) -> Any:
    """Escapes template syntax in all texts of a value, so that they render unchanged."""
    if isinstance(value, dict):
        return {name: literals(member) for name, member in value.items()}
    if isinstance(value, list):
        return [literals(item) for item in value]
    if not isinstance(value, str):
        return value
    if len(_MARK.findall(value)) > MAX_ESCAPES:
        return _literal(value)
    return _MARK.sub(r"{{ '\g<0>' }}", value)


def _literal(text: str) -> str:
    """Returns a template of one string literal.

    Many expressions would exceed the limits of a template.
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    escaped = escaped.encode("ascii", "backslashreplace").decode()
    return "{{ '" + escaped.replace("\n", "\\n").replace("\r", "\\r") + "' }}"


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
