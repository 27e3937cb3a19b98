"""`python -m app script check FILE...` and `script try FILE --messages ...`: scripts without a server."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import get_args

import msgspec

from app.engine.forms.schema import Schemas
from app.serving.scripts.book import Decision, ScriptBook, accepting, log
from app.serving.scripts.matching import WORDS, Message, Request, TooSlow, folded_text, listed
from app.serving.scripts.rule_state import RuleState
from app.serving.scripts.rules import (
    Family,
    MessageIs,
    Nth,
    Range,
    ScriptError,
    ScriptFailure,
    TextIs,
    When,
)
from config.flags import Parser
from config.installation import COMMAND


def unreachable(rules: Sequence[RuleState]) -> Iterator[tuple[RuleState, RuleState]]:
    """Yields pairs of a rule and a later rule that can only match the same requests.

    Reports only certain cases: two regexes are compared as texts, and quotas of faults are ignored.
    """
    by_text: dict[str, list[RuleState]] = {}
    """Rules for one exact message. A recording may have made thousands, so a dictionary finds them."""
    others: list[RuleState] = []
    for rule in rules:
        text = _only_text(rule.rule.when)
        candidates = [*others, *(by_text.get(text, ()) if text is not None else ())]
        earlier = next((each for each in candidates if _hides(each, rule)), None)
        if earlier is not None:
            yield earlier, rule
        elif _always_answers(rule):
            (others if text is None else by_text.setdefault(text, [])).append(rule)


def _only_text(when: When) -> str | None:
    message = when.message
    if isinstance(message, MessageIs) and not message.ignore_case:
        message = message.exact
    return message if isinstance(message, str) else None


def _always_answers(rule: RuleState) -> bool:
    nth = rule.rule.when.nth
    every = nth is None or isinstance(nth, Nth) and nth.count == Range()
    return every and rule.rule.when.chance >= 1 and not rule.only_fails


def _hides(earlier: RuleState, later: RuleState) -> bool:
    first, second = earlier.rule.when, later.rule.when
    kinds = [each.action.numbers or (WORDS if each.action.speaks else "") for each in (earlier, later)]
    names = [{*each.needed_tools, *_values(each.rule.when.tools)} for each in (earlier, later)]
    return (
        kinds[0] in ("", kinds[1])
        and names[0] <= names[1]
        and (not isinstance(first.tools, bool) or first.tools is second.tools)
        and all(_covers(getattr(first, key), getattr(second, key)) for key in ("model", "api", "turn"))
        and (
            _covers(first.tool_result, second.tool_result)
            or first.tool_result is True
            and bool(second.tool_result)
        )
        and first.headers.items() <= second.headers.items()
        and all(_message_follows(each, _messages(second)) for each in _messages(first))
    )


def _values(wanted: object) -> set[object]:
    """Returns the values that a condition lists; empty for a condition of another kind."""
    if isinstance(wanted, tuple):
        return set(wanted)
    return {wanted} if isinstance(wanted, str | int) and not isinstance(wanted, bool) else set()


def _covers(first: object, second: object) -> bool:
    """True if the first condition holds for every request that the second accepts."""
    if first is None or first == second or first is True and second not in (None, False):
        return True
    return bool(_values(second)) and _values(second) <= _values(first)


def _messages(when: When) -> list[MessageIs]:
    every = when.message if isinstance(when.message, tuple) else (when.message,)
    return [MessageIs(exact=each) if isinstance(each, str) else each for each in every if each is not None]


def _message_follows(wanted: MessageIs, given: Sequence[MessageIs]) -> bool:
    """True if one of the conditions `given` implies `wanted`."""
    return any(_is_of(wanted, each) and _text_follows(wanted, each) for each in given)


def _is_of(wanted: MessageIs, given: MessageIs) -> bool:
    """True if `wanted` looks at the message that `given` looks at."""
    if wanted.which == "any":
        return wanted.role in (None, given.role)
    return (wanted.which, wanted.role) == (given.which, given.role)


def _text_follows(wanted: TextIs, given: TextIs) -> bool:
    """True if every text that satisfies `given` satisfies `wanted`."""
    if wanted.exact is None and wanted.contains is None and wanted.regex is None:
        return True
    if given.ignore_case and not wanted.ignore_case:
        return False
    fold = folded_text if wanted.ignore_case else str
    exact = None if given.exact is None else [fold(text) for text in listed(given.exact)]
    if wanted.exact is not None:
        allowed = {fold(text) for text in listed(wanted.exact)}
        if exact is None or not allowed.issuperset(exact):
            return False
    if wanted.contains is not None:
        parts = [fold(text) for text in listed(wanted.contains)]
        have = exact if exact is not None else [fold(text) for text in listed(given.contains or ())]
        if not have or not all(any(part in text for part in parts) for text in have):
            return False
    same = (wanted.regex, wanted.ignore_case) == (given.regex, given.ignore_case)
    return wanted.regex is None or same


ABOUT = "Check scripted replies, and try them, without a server (docs/scripts.md)."
FAMILIES: Sequence[str] = get_args(Family)
ReadMessages = Callable[[Sequence[dict[str, object]]], Sequence[Message]]


def run(argv: Sequence[str], read: ReadMessages) -> int:
    """Returns the exit status: 1 for an invalid script or argument, or when no rule answers; 0 otherwise.

    `read` converts chat messages into the messages that rules compare.
    """
    given = _parser().parse_args(argv)
    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    log.setLevel(logging.WARNING)
    try:
        return check(given.files) if given.command == "check" else attempt(given, read)
    except (ScriptError, ScriptFailure, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def check(files: Sequence[str]) -> int:
    """Prints the number of rules of each valid file, and logs the rules that can never be reached.

    ScriptError for the first invalid file.
    """
    for file in _book(files, None).files:
        print(f"{file.path}: {len(file.rules)} rules are in order")
        for earlier, later in unreachable(file.rules):
            log.warning("%s can never be reached: rule %d fits all that it does", later.place, earlier.number)
    return 0


def attempt(given: argparse.Namespace, read: ReadMessages) -> int:
    """Prints the rule that answers the messages, and its answer. `--why` prints why earlier rules do not
    match.
    """
    book = _book(given.files, given.seed)
    request = _request(given, read)
    decision = None
    for _ in range(given.times):
        decision = book.decide(request)
    if given.why:
        _explain(book, request, decision)
    if decision is None:
        print("no rule answers; the mode below does")
        return 1
    print(f"# {decision.rule.place}")
    print(json.dumps(_told(decision), ensure_ascii=False, indent=2))
    return 0


def _explain(book: ScriptBook, request: Request, decision: Decision | None) -> None:
    """Prints a line for each rule before the one that answers."""
    for file in book.files:
        for rule in file.rules:
            if decision is not None and rule is decision.rule:
                return
            print(f"# {rule.place}: {_why_not(rule, request)}")


def _why_not(rule: RuleState, request: Request) -> str:
    if not rule.concerns(request):
        return f"has nothing for {request.api}"
    try:
        key = rule.conditions.misfit(request)
    except TooSlow as error:
        return f"the regex {str(error)[:60]!r} takes too long"
    if key:
        return f"when.{key} does not hold"
    return rule.missing_tool(request) or "nth or chance does not hold"


def _told(decision: Decision) -> Mapping[str, object]:
    answer, fault = decision.answer, decision.fault
    told: dict[str, object] = {}
    if answer is not None:
        reply = msgspec.to_builtins(answer.reply)
        reply["calls"] = [_call(*call) for call in answer.reply.calls]
        unsaid = ("in_parts", "passes") if decision.rule.action.numbers else ("in_parts",)
        told = {name: value for name, value in reply.items() if value and name not in unsaid}
        told |= {} if answer.usage is None else {"usage": msgspec.to_builtins(answer.usage)}
        for name in ("embedding", "score", "classes"):
            told |= {} if (value := getattr(answer, name)) is None else {name: value}
    return told | ({} if fault is None else {"fault": fault.name})


def _call(name: str, arguments: str, own_id: str) -> Mapping[str, object]:
    return {"name": name, "arguments": json.loads(arguments)} | ({"id": own_id} if own_id else {})


def _book(files: Sequence[str], seed: int | None) -> ScriptBook:
    named = [("", path) for path in files]
    return ScriptBook(named, Random(seed), time.monotonic, time.time, accepting(Schemas()))


def _request(given: argparse.Namespace, read: ReadMessages) -> Request:
    """Builds the request from the arguments. ValueError for invalid messages or tools."""
    messages = _json(given.messages, "--messages")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise ValueError("--messages: must be a text, or a JSON list of messages")
    headers = dict(_header(text) for text in given.header)
    return Request(
        given.api,
        given.model,
        read(messages),
        _tools(_json(given.tools, "--tools") if given.tools else []),
        lambda name: headers.get(name.lower()),
        lambda: "address:local",
    )


def _tools(listed: object) -> Mapping[str, object]:
    """Returns tool names with their schemas, from a chat request's list or a mapping."""
    if isinstance(listed, dict):
        return listed
    try:
        functions = [tool.get("function", tool) for tool in listed]  # type: ignore[attr-defined]
        return {function["name"]: function.get("parameters") or {} for function in functions}
    except (TypeError, KeyError, AttributeError):
        raise ValueError("--tools: must be a JSON list of tools, or a mapping of names to schemas") from None


def _header(text: str) -> tuple[str, str]:
    name, _, value = text.partition(":")
    return name.strip().lower(), value.strip()


def _json(text: str, flag: str) -> object:
    """Returns parsed JSON; @FILE reads a file. Text that starts with no bracket is returned unparsed."""
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
    parser = Parser(f"{COMMAND} script", description=ABOUT, epilog=more, allow_abbrev=False)
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
    trying.add_argument("--times", type=int, default=1, help="ask so often, and show the last answer")
    trying.add_argument("--why", action="store_true", help="say why the rules before it do not answer")
    return parser
