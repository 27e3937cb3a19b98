"""`python -m app script from-recording FILE`: turns a recording into an editable script (docs/scripts.md)."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import yaml

from app.serving.recording.exchange import Answer, Chunk, Exchange, bytes_of
from app.serving.recording.families import ParsedReply, ParsedRequest, parse_reply, parse_request
from app.serving.recording.library import recorded
from config import ConfigError
from config.flags import Parser
from config.installation import COMMAND

ABOUT = f"""\
Make a script of a recording ({COMMAND} record --proxy): a rule for each exchange, told by the last
message of the user and the result of a tool. The script is to be edited: make its conditions wider, its
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


def run(argv: Sequence[str]) -> int:
    logging.basicConfig(format="%(levelname)s: %(message)s")
    given = _parser().parse_args(argv)
    text = _written(recorded(given.file))
    if given.out is None:
        print(text, end="")
        return 0
    try:
        with given.out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{given.out}: cannot be written: {error.strerror or error}") from None
    return 0


def _parser() -> argparse.ArgumentParser:
    flags = Parser(prog=f"{COMMAND} script from-recording", description=ABOUT, allow_abbrev=False)
    flags.add_argument("file", metavar="FILE", help="the recording")
    flags.add_argument("--out", type=Path, metavar="FILE", help="a new file for the script [standard output]")
    return flags


def _written(exchanges: Iterable[tuple[int, Exchange]]) -> str:
    """Returns the script as YAML. ConfigError when a script can answer no exchange of the recording."""
    document = script_of(exchanges)
    if not document["rules"]:
        raise ConfigError("the recording has no exchange that a script could answer")
    text = yaml.safe_dump(document, allow_unicode=True, sort_keys=False, width=110)
    if len(text.encode()) > MOST_BYTES:
        print(f"WARNING: more than the {MOST_BYTES >> 20} MiB that a script may have", file=sys.stderr)
    return f"# From a recording; edit it at will (docs/scripts.md).\n{text}"


def script_of(exchanges: Iterable[tuple[int, Exchange]]) -> dict[str, Any]:
    """Builds the document of a script. Logs each exchange that scripts cannot answer to stderr."""
    rules: list[dict[str, Any]] = []
    tools: dict[str, Any] = {}
    models: set[str] = set()
    for number, exchange in exchanges:
        request, answer = exchange.request, exchange.answer
        asked = parse_request(request.target, bytes_of(request.body)) if request.method == "POST" else None
        then = None if asked is None else _then(asked.api, answer)
        if asked is None or then is None:
            print(f"line {number}: left out: {request.method} {request.target}", file=sys.stderr)
            continue
        tools |= asked.tools
        models.add(asked.model)
        rules.append({"name": f"line {number}", "when": _when(asked), "then": then})
    _tell_apart(rules, len(models) > 1)
    return ({"tools": tools} if tools else {}) | {"rules": rules}


def _when(asked: ParsedRequest) -> dict[str, Any]:
    result: bool | dict[str, str] = False
    if asked.result is not None:
        result = ({"tool": asked.tool} if asked.tool else {}) | {"exact": asked.result}
    return {
        "api": asked.api,
        "model": asked.model,
        "message": {"role": "user", "exact": asked.user},
        **({"turn": asked.turn} if asked.turn > 1 else {}),
        "tool_result": result,
    }


def _tell_apart(rules: list[dict[str, Any]], by_model: bool) -> None:
    """Makes rules with equal conditions answer once, in order, except the last.

    Removes the condition on the model unless `by_model`.
    """
    seen: set[bytes] = set()
    for rule in reversed(rules):
        if not by_model:
            del rule["when"]["model"]
        key = msgspec.json.encode(rule["when"])
        if key in seen:
            rule["when"]["nth"] = 1
        seen.add(key)


def _then(api: str, answer: Answer[Chunk]) -> dict[str, Any] | None:
    if answer.status >= 400:
        return {"fault": _error(answer)}
    reply = parse_reply(api, answer)
    if reply is None:
        return None
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


def _error(answer: Answer[Chunk]) -> dict[str, Any]:
    """Builds the equivalent fault rule (docs/faults.md)."""
    fault: dict[str, Any] = {"action": "error", "status": answer.status}
    body = b"".join(bytes_of(chunk.data) for chunk in answer.chunks)
    try:
        error = msgspec.json.decode(body, type=dict[str, dict[str, Any]]).get("error", {})
    except msgspec.MsgspecError:
        return fault
    return fault | {name: error[name] for name in ("type", "message") if isinstance(error.get(name), str)}


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


def _delays(reply: ParsedReply, end_s: float) -> dict[str, Any]:
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
