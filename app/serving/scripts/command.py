"""`python -m app script check FILE...` and `script try FILE --messages ...`:

scripts without a server.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import get_args

import msgspec

from app.engine.forms.schema import Schemas
from app.serving.api.fault import RequestFacts
from app.serving.scripts.matching import (
    BudgetSpent,
    Groups,
    MatchBudget,
    MatchedRequest,
    Message,
    TooSlow,
)
from app.serving.scripts.rules import Family, ScriptError, ScriptFailure
from app.serving.scripts.script_set import Decision, RuleState, ScriptSet, accepting, log
from config.declaration import COMMAND
from config.flags import FlagParser

ABOUT = "Check scripted replies, and try them, without a server (docs/scripts.md)."
FAMILIES: Sequence[str] = get_args(Family)
ReadMessages = Callable[[Sequence[dict[str, object]]], Sequence[Message]]


def run(argv: Sequence[str], read: ReadMessages) -> int:
    """Returns the exit status:

    1 for an invalid script or argument, or when no rule answers; 0 otherwise.
    """
    given = _parser().parse_args(argv)
    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    log.setLevel(logging.WARNING)
    try:
        seed = given.seed if given.command == "try" else None
        files = [("", path) for path in given.files]
        scripts = ScriptSet(files, Random(seed), time.monotonic, time.time, accepting(Schemas()))
        if given.command == "check":
            for file in scripts.files:
                print(f"{file.path}: {len(file.rules)} rules are in order")
            return 0
        return _try(scripts, _request(given, read), given)
    except (ScriptError, ScriptFailure, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _try(scripts: ScriptSet, request: MatchedRequest, given: argparse.Namespace) -> int:
    """Prints the rule that answers and its answer; with `--why`, why earlier rules do not match."""
    decision = None
    for _ in range(given.times):
        request.budget = MatchBudget()
        decision = scripts.decide(request)
    if given.why:
        request.budget = MatchBudget()
        for rule in (rule for file in scripts.files for rule in file.rules):
            if decision is not None and rule is decision.rule:
                break
            print(f"# {rule.place}: {_why_not(rule, request)}")
    if decision is None:
        print("no rule answers; the mode below does")
        return 1
    print(f"# {decision.rule.place}")
    print(json.dumps(_shown(decision), ensure_ascii=False, indent=2))
    return 0


def _why_not(rule: RuleState, request: MatchedRequest) -> str:
    if not rule.concerns(request):
        return f"has nothing for {request.api}"
    try:
        key = rule.conditions.misfit(request, Groups())
    except BudgetSpent as error:
        return str(error)
    except TooSlow as error:
        return f"the regex {str(error)[:60]!r} takes too long"
    if key:
        return f"when.{key} does not hold"
    return rule.missing_tool(request) or "nth or chance does not hold"


def _shown(decision: Decision) -> dict[str, object]:
    answer, fault = decision.answer, decision.fault
    shown: dict[str, object] = {}
    if answer is not None:
        reply = msgspec.to_builtins(answer.reply)
        del reply["in_parts"]
        if answer.embedding is not None or answer.score is not None or answer.classes is not None:
            del reply["passes"]
        reply["calls"] = [
            {"name": name, "arguments": json.loads(arguments)} | ({"id": own_id} if own_id else {})
            for name, arguments, own_id in answer.reply.calls
        ]
        shown = {name: value for name, value in reply.items() if value}
        for name in ("usage", "embedding", "score", "classes"):
            if (value := getattr(answer, name)) is not None:
                shown[name] = msgspec.to_builtins(value)
    return shown | ({} if fault is None else {"fault": fault.name})


def _request(given: argparse.Namespace, read: ReadMessages) -> MatchedRequest:
    """Builds the request from the arguments. ValueError for invalid messages or tools."""
    messages = _json(given.messages, "--messages")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise ValueError("--messages: must be a text, or a JSON list of messages")
    tools = _json(given.tools, "--tools") if given.tools else {}
    if not isinstance(tools, dict):
        try:
            functions = [tool.get("function", tool) for tool in tools]  # type: ignore[attr-defined]
            tools = {function["name"]: function.get("parameters") or {} for function in functions}
        except (TypeError, KeyError, AttributeError):
            told = "must be a JSON list of tools, or a mapping of names to schemas"
            raise ValueError(f"--tools: {told}") from None
    pairs = (text.partition(":") for text in given.header)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    facts = RequestFacts(
        "", given.model, lambda name: headers.get(name.lower()), lambda: "address:local"
    )
    return MatchedRequest(given.api, facts, read(messages), tools)


def _json(text: str, flag: str) -> object:
    """Returns parsed JSON; @FILE reads a file.

    Text that starts with no bracket is returned unparsed.
    """
    if text.startswith("@"):
        text = Path(text[1:]).read_text("utf-8")
    if text.lstrip()[:1] not in ("[", "{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{flag}: is no JSON: {error}") from None


def _parser() -> argparse.ArgumentParser:
    more = f"{COMMAND} script from-recording FILE makes a script of a recording (docs/recording.md)"
    parser = FlagParser(f"{COMMAND} script", description=ABOUT, epilog=more, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="look for mistakes", allow_abbrev=False)
    trying = commands.add_parser("try", help="say which rule answers, and what", allow_abbrev=False)
    for command in (checking, trying):
        command.add_argument("files", nargs="+", metavar="FILE")
    messages = "a user's text, or messages as JSON, or @FILE with them"
    trying.add_argument("--messages", required=True, help=messages)
    trying.add_argument("--tools", help="tools as a chat request has them, as JSON or @FILE")
    trying.add_argument("--api", choices=FAMILIES, default="chat")
    trying.add_argument("--model", default="model")
    trying.add_argument("--header", action="append", default=[], metavar="NAME:VALUE")
    trying.add_argument("--seed", type=int, default=0, help="of random draws")
    trying.add_argument(
        "--times", type=int, default=1, help="ask so often, and show the last answer"
    )
    trying.add_argument(
        "--why", action="store_true", help="say why the rules before it do not answer"
    )
    return parser
