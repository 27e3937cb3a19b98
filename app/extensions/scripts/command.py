"""Scripts without a server: `understudy script check FILE...` and `script try FILE ...`."""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import get_args

import msgspec

from app.core.api.fault import RequestFacts
from app.core.engine.request import ScriptedReply
from app.extensions.forms.schema import Schemas
from app.extensions.scripts.matched_request import (
    BudgetSpentError,
    MatchBudget,
    MatchedRequest,
    Message,
    SlowRegexError,
)
from app.extensions.scripts.matching import Groups
from app.extensions.scripts.rules import Family, RuleFailureError, ScriptError
from app.extensions.scripts.script_file import RuleContext, RuleState
from app.extensions.scripts.script_set import Decision, SchemaCheck, ScriptSet
from config.declaration import COMMAND
from config.files import read_text
from config.flags import FlagParser
from config.untrusted import UntrustedDataError, decode_untrusted, python_json

DESCRIPTION = """\
Check scripted replies, and try them, without a server (docs/scripts.md). script from-recording
makes a script from a recording (docs/recording.md), and script import one from the fixtures of
other tools (docs/import.md).
"""
EXAMPLES = (
    f"{COMMAND} script check understudy/replies.yaml",
    f"{COMMAND} script try understudy/replies.yaml --messages 'Hello'",
    f"{COMMAND} script from-recording session.jsonl --out replies.yaml",
    f"{COMMAND} script import fixtures.json --out imported.yaml",
)
EXAMPLE_SCRIPT = """\
  rules:
  - when: {message: {contains: weather}}
    then: {text: It is sunny.}
  - times: 1
    then: {fault: {action: error, status: 503}}
  - then: {text: Hello.}
"""
NOTES = f"""\
a script (the first rule that matches a request answers it):
{EXAMPLE_SCRIPT}
`{COMMAND} run --script FILE` answers by it.
"""
FAMILIES: Sequence[str] = get_args(Family)
ReadMessages = Callable[[Sequence[dict[str, object]]], Sequence[Message]]


def run(argv: Sequence[str], read: ReadMessages) -> int:
    """Runs the command and returns its exit status.

    The status is 1 for an invalid script or argument, or when no rule answers.
    """
    arguments = _parser().parse_args(argv)
    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    logging.getLogger("app.extensions.scripts").setLevel(logging.WARNING)
    try:
        seed = arguments.seed if arguments.command == "try" else None
        context = RuleContext(Random(seed), time.monotonic, SchemaCheck(Schemas()))
        scripts = ScriptSet([("", path) for path in arguments.files], context, time.time)
        if arguments.command == "check":
            for file in scripts.files:
                print(f"{file.path}: {len(file.rules)} rules are valid")
            return 0
        return _try(scripts, _request(arguments, read), arguments)
    except (ScriptError, RuleFailureError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _try(scripts: ScriptSet, request: MatchedRequest, arguments: argparse.Namespace) -> int:
    """Prints the rule that answers and its answer; with `--why`, why earlier rules do not match."""
    decision = None
    for _ in range(arguments.times):
        request.budget = MatchBudget()
        decision = scripts.decide(request)
    if arguments.why:
        request.budget = MatchBudget()
        for rule in scripts.files.states():
            if decision is not None and rule is decision.rule:
                break
            print(f"# {rule.location}: {_mismatch(rule, request)}")
    if decision is None:
        print("no rule matches; the reply mode answers")
        return 1
    print(f"# {decision.rule.location}")
    print(json.dumps(_decision_to_json(decision), ensure_ascii=False, indent=2))
    return 0


def _mismatch(rule: RuleState, request: MatchedRequest) -> str:
    """Returns the reason why a rule does not answer."""
    if not rule.has_result_for(request):
        return f"has no result for {request.api}"
    try:
        key = rule.conditions.first_mismatch(request, Groups())
    except BudgetSpentError as error:
        return str(error)
    except SlowRegexError as error:
        return f"the regex {str(error)[:60]!r} takes too long"
    if key:
        return f"when.{key} does not hold"
    return rule.missing_tool_error(request) or "nth or chance does not hold"


def _decision_to_json(decision: Decision) -> dict[str, object]:
    fields: dict[str, object] = {}
    answer = decision.answer
    if answer is not None:
        reply = _reply_to_json(answer.reply)
        if answer.embedding is not None or answer.score is not None or answer.classes is not None:
            del reply["passes"]
        fields = {name: value for name, value in reply.items() if value}
        for name in ("usage", "embedding", "score", "classes"):
            value = getattr(answer, name)
            if value is not None:
                fields[name] = msgspec.to_builtins(value)
    if decision.fault is not None:
        fields["fault"] = decision.fault.name
        if decision.fault.error is not None:
            fields["status"] = decision.fault.error.status
    return fields


def _reply_to_json(reply: ScriptedReply) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(reply)
    del fields["in_parts"]
    calls: list[dict[str, object]] = []
    for name, arguments, call_id in reply.calls:
        call: dict[str, object] = {
            "name": name,
            "arguments": decode_untrusted(arguments, decoder=python_json),
        }
        if call_id:
            call["id"] = call_id
        calls.append(call)
    fields["calls"] = calls
    return fields


def _request(arguments: argparse.Namespace, read: ReadMessages) -> MatchedRequest:
    """Builds the request from the arguments, or raises `ValueError`."""
    messages = _json(arguments.messages, "--messages")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
        raise ValueError("--messages: must be a string or a JSON list of messages")
    headers: dict[str, str] = {}
    for header in arguments.header:
        name, _, value = header.partition(":")
        headers[name.strip().lower()] = value.strip()

    def read_header(name: str) -> str | None:
        return headers.get(name.lower())

    facts = RequestFacts("", arguments.model, header=read_header, client=_client)
    return MatchedRequest(arguments.api, facts, read(messages), _tools(arguments.tools))


def _client() -> str:
    return "address:local"


def _tools(text: str | None) -> Mapping[str, object]:
    """Returns the schemas of tools by name, or raises `ValueError`."""
    if not text:
        return {}
    tools = _json(text, "--tools")
    if isinstance(tools, dict):
        return tools
    try:
        functions = [tool.get("function", tool) for tool in tools]  # type: ignore[attr-defined]
        return {function["name"]: function.get("parameters") or {} for function in functions}
    except (TypeError, KeyError, AttributeError):
        raise ValueError(
            "--tools: must be a JSON list of tools, or a mapping of names to schemas"
        ) from None


def _json(text: str, flag: str) -> object:
    """Returns the JSON of `text`, or of the file that @FILE names.

    Text that does not start with a bracket is returned unparsed. Raises `ValueError` for invalid
    JSON.
    """
    if text.startswith("@"):
        text = read_text(text[1:])
    if text.lstrip()[:1] not in ("[", "{"):
        return text
    try:
        return decode_untrusted(text, decoder=python_json)
    except UntrustedDataError as error:
        raise ValueError(f"{flag}: invalid JSON: {error}") from None


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(f"{COMMAND} script", description=DESCRIPTION, allow_abbrev=False)
    parser.examples = EXAMPLES
    parser.notes = NOTES
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="check scripts for errors", allow_abbrev=False)
    check.add_argument("files", nargs="+", metavar="FILE")
    trial = commands.add_parser(
        "try", help="print the rule that answers a request, and its answer", allow_abbrev=False
    )
    trial.add_argument("files", nargs="+", metavar="FILE")
    trial.add_argument(
        "--messages", required=True, help="text of a user, or messages as JSON, or @FILE with them"
    )
    trial.add_argument("--tools", help="tools of a chat request, as JSON or @FILE")
    trial.add_argument("--api", choices=FAMILIES, default="chat")
    trial.add_argument("--model", default="model")
    trial.add_argument("--header", action="append", default=[], metavar="NAME:VALUE")
    trial.add_argument("--seed", type=int, default=0, help="seed of random draws")
    trial.add_argument(
        "--times", type=int, default=1, help="repeat the request, and print the last answer"
    )
    trial.add_argument(
        "--why", action="store_true", help="print why each earlier rule does not answer"
    )
    return parser
