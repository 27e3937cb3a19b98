"""`python -m app script from-recording FILE`:

turns a recording into an editable script (docs/scripts.md).
"""

import logging
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import msgspec
import yaml
from msgspec import convert

from app.serving.recording import exchange as recordings
from app.serving.recording.lines import recorded
from config import ConfigError
from config.declaration import COMMAND
from config.flags import FlagParser

ABOUT = f"""\
Make a script of a recording ({COMMAND} record --proxy): a rule for each chat and completion, told by the
last message of the user and the result of a tool. The script is to be edited: make its conditions wider, its
replies templates.
"""
MOST_BYTES = 2 << 20
OWN_FINISHES = frozenset(("length", "abort", "content_filter"))
LEAST_PAUSE_S, PAUSE_GAPS = 0.1, 4
"""A pause is a gap between tokens above 0.1 s and above 4 times the median gap."""
_MARK = re.compile(r"\{[{%#]")
MAX_ESCAPES = 100
"""Most expressions in an escaped text; a text with more template syntax becomes a single literal.
"""
FAMILIES = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
Json: TypeAlias = dict[str, Any]


def run(argv: Sequence[str]) -> int:
    logging.basicConfig(format="%(levelname)s: %(message)s")
    flags = FlagParser(
        prog=f"{COMMAND} script from-recording", description=ABOUT, allow_abbrev=False
    )
    flags.add_argument("file", metavar="FILE", help="the recording")
    flags.add_argument(
        "--out", type=Path, metavar="FILE", help="a new file for the script [standard output]"
    )
    given = flags.parse_args(argv)
    document = script_of(recorded(given.file))
    if not document["rules"]:
        raise ConfigError("the recording has no exchange that a script could answer")
    text = "# From a recording; edit it at will (docs/scripts.md).\n"
    text += yaml.safe_dump(document, allow_unicode=True, sort_keys=False, width=110)
    if len(text.encode()) > MOST_BYTES:
        print(
            f"WARNING: more than the {MOST_BYTES >> 20} MiB that a script may have", file=sys.stderr
        )
    if given.out is None:
        print(text, end="")
        return 0
    try:
        with given.out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{given.out}: cannot be written: {error.strerror or error}") from None
    return 0


def script_of(exchanges: Iterable[tuple[int, recordings.Exchange]]) -> Json:
    """Builds a script.

    Rules with equal conditions answer once, in order; stderr names exchanges left out.
    """
    rules: list[Json] = []
    tools: Json = {}
    for number, exchange in exchanges:
        request = exchange.request
        try:
            api = FAMILIES[request.target.partition("?")[0]]
            asked = msgspec.json.decode(recordings.bytes_of(request.body), type=Json)
            rule: Json = {
                "name": f"line {number}",
                "when": _when(api, asked),
                "then": _then(exchange.answer),
            }
            functions = [tool.get("function") or tool for tool in asked.get("tools") or ()]
            tools |= {
                each["name"]: each["parameters"] for each in functions if each.get("parameters")
            }
        except recordings.BROKEN:
            print(f"line {number}: left out: {request.method} {request.target}", file=sys.stderr)
            continue
        rules.append(rule)
    has_one_model = len({rule["when"]["model"] for rule in rules}) == 1
    seen: set[bytes] = set()
    for rule in reversed(rules):
        if has_one_model:
            del rule["when"]["model"]
        key = msgspec.json.encode(rule["when"])
        if key in seen:
            rule["when"]["nth"] = 1
        seen.add(key)
    return ({"tools": tools} if tools else {}) | {"rules": rules}


def _when(api: str, asked: Json) -> Json:
    """Returns the conditions for a request:

    the user's last message, the turn, the tool result at the end.
    """
    turns: list[Json] = asked.get("messages") or []
    if api == "completions":
        turns = [{"role": "user", "content": convert(asked["prompt"], str)}]
    calls = [call for turn in turns for call in turn.get("tool_calls") or ()]
    names = {str(call.get("id")): str(call["function"]["name"]) for call in calls}
    last = turns[-1] if turns else {}
    result: bool | dict[str, str] = False
    if last.get("role") == "tool":
        tool = names.get(str(last.get("tool_call_id")))
        result = ({"tool": tool} if tool else {}) | {"exact": recordings.text_of(last)}
    users = [
        text for turn in turns if turn.get("role") == "user" and (text := recordings.text_of(turn))
    ]
    return {
        "api": api,
        "model": str(asked.get("model") or ""),
        "message": {"role": "user", "exact": users[-1] if users else ""},
        **({"turn": len(users)} if len(users) > 1 else {}),
        "tool_result": result,
    }


def _then(answer: recordings.RecordedAnswer) -> Json:
    if answer.status >= 400:
        error: Json = {}
        with suppress(msgspec.MsgspecError):
            error = msgspec.json.decode(answer.body(), type=dict[str, Json]).get("error", {})
        told = {
            name: error[name] for name in ("type", "message") if isinstance(error.get(name), str)
        }
        return {"fault": {"action": "error", "status": answer.status, **told}}
    reply = recordings.reply_of(answer)
    then: Json = {"reasoning": _literals(reply.reasoning)} if reply.reasoning else {}
    if reply.text or not reply.calls:
        then["text"] = _literals(reply.text)
    if reply.calls:
        then["tool_calls"] = [_call(name, arguments) for name, arguments in reply.calls]
    if reply.finish in OWN_FINISHES:
        then["finish_reason"] = reply.finish
    if answer.is_broken:
        then["fault"] = {"action": "disconnect", "after": reply.events}
    return then | {"delays": _delays(reply.moments, answer.end_s)}


def _call(name: str, arguments: str) -> Json:
    try:
        given = msgspec.json.decode(arguments or "{}", type=Json)
    except msgspec.MsgspecError:  # scripts cannot make malformed arguments
        return {"name": name, "unchecked": True}
    return {"name": name, "arguments": _literals(given)}


def _literals(value: Any) -> Any:
    """Escapes template syntax in all texts of a value, so that they render as they are."""
    if isinstance(value, dict):
        return {name: _literals(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_literals(item) for item in value]
    if not isinstance(value, str):
        return value
    if len(_MARK.findall(value)) > MAX_ESCAPES:
        return _literal(value)
    return _MARK.sub(lambda found: "{{ '" + found[0] + "' }}", value)


def _literal(text: str) -> str:
    """Returns a template of one string literal:

    many expressions would exceed the limits of a template.
    """
    escaped = (
        text.replace("\\", "\\\\").replace("'", "\\'").encode("ascii", "backslashreplace").decode()
    )
    return "{{ '" + escaped.replace("\n", "\\n").replace("\r", "\\r") + "' }}"


def _delays(moments: Sequence[float], end_s: float) -> Json:
    if len(moments) < 2:
        return {"first_token": f"{end_s * 1e3:.0f}ms"}
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    usual_s = median(gaps)
    longest_s = max(LEAST_PAUSE_S, PAUSE_GAPS * usual_s)
    pauses = {token: gap_s - usual_s for token, gap_s in enumerate(gaps, 2) if gap_s > longest_s}
    each_s = (sum(gaps) - sum(pauses.values())) / len(gaps)
    before = {token: f"{pause_s * 1e3:.0f}ms" for token, pause_s in pauses.items()}
    return {
        "first_token": f"{moments[0] * 1e3:.0f}ms",
        "per_token": f"{each_s * 1e3:.1f}ms",
        **({"before": before} if before else {}),
    }
