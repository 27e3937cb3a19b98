"""`python -m app script check FILE...` and `script try FILE --messages ...`: scripts without a server."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import get_args

import msgspec

from app.engine.forms.schema import Schemas
from app.serving.scripts.matching import (
    WORDS,
    Groups,
    MatchedRequest,
    Message,
    TooSlow,
    folded_text,
    listed,
    message_conditions,
)
from app.serving.scripts.rules import (
    Family,
    MessageIs,
    Nth,
    Range,
    ScriptError,
    ScriptFailure,
    TextIs,
)
from app.serving.scripts.script_set import Decision, RuleState, ScriptSet, accepting, log
from config.flags import FlagParser
from config.installation import COMMAND

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
        seed = given.seed if given.command == "try" else None
        files = [("", path) for path in given.files]
        scripts = ScriptSet(files, Random(seed), time.monotonic, time.time, accepting(Schemas()))
        if given.command == "check":
            _check(scripts)
            return 0
        return _try(scripts, _request(given, read), given)
    except (ScriptError, ScriptFailure, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _check(scripts: ScriptSet) -> None:
    """Prints the number of rules of each file, and logs the rules that can never be reached."""
    for file in scripts.files:
        print(f"{file.path}: {len(file.rules)} rules are in order")
        for earlier, later in unreachable(file.rules):
            log.warning("%s can never be reached: rule %d fits all that it does", later.place, earlier.number)


def _try(scripts: ScriptSet, request: MatchedRequest, given: argparse.Namespace) -> int:
    """Prints the rule that answers the request, and its answer. `--why` prints why earlier rules do not
    match.
    """
    decision = None
    for _ in range(given.times):
        decision = scripts.decide(request)
    if given.why:
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
        if decision.rule.action.numbers:
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
    return MatchedRequest(
        given.api,
        given.model,
        read(messages),
        tools,
        lambda name: headers.get(name.lower()),
        lambda: "address:local",
    )


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
    trying.add_argument("--times", type=int, default=1, help="ask so often, and show the last answer")
    trying.add_argument("--why", action="store_true", help="say why the rules before it do not answer")
    return parser


def unreachable(rules: Sequence[RuleState]) -> Iterator[tuple[RuleState, RuleState]]:
    """Yields pairs of a rule and a later rule that can only match the same requests.

    Reports only certain cases: two regexes are compared as texts, and quotas of faults are ignored.
    """
    by_text: dict[str, list[RuleState]] = {}
    """Rules for one exact message. A recording may have made thousands, so a dictionary finds them."""
    others: list[RuleState] = []
    for rule in rules:
        when = rule.rule.when
        text = when.message
        if isinstance(text, MessageIs) and not text.ignore_case:
            text = text.exact
        text = text if isinstance(text, str) else None
        candidates = [*others, *(by_text.get(text, ()) if text is not None else ())]
        earlier = next((each for each in candidates if _hides(each, rule)), None)
        if earlier is not None:
            yield earlier, rule
            continue
        nth = when.nth
        is_any = nth is None or isinstance(nth, Nth) and nth.count == Range()
        if is_any and when.chance >= 1 and not rule.only_fails:
            (others if text is None else by_text.setdefault(text, [])).append(rule)


def _hides(earlier: RuleState, later: RuleState) -> bool:
    """True if the earlier rule, which always answers, matches every request of the later one."""
    first, second = earlier.rule.when, later.rule.when
    kinds = [each.action.numbers or (WORDS if each.action.speaks else "") for each in (earlier, later)]
    names = [{*each.needed_tools, *_values(each.rule.when.tools)} for each in (earlier, later)]
    given = message_conditions(second)
    return (
        kinds[0] in ("", kinds[1])
        and names[0] <= names[1]
        and (not isinstance(first.tools, bool) or first.tools is second.tools)
        and all(
            _covers(getattr(first, key), getattr(second, key))
            for key in ("model", "api", "turn", "tool_result")
        )
        and first.headers.items() <= second.headers.items()
        and all(any(_follows(wanted, each) for each in given) for wanted in message_conditions(first))
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


def _follows(wanted: MessageIs, given: MessageIs) -> bool:
    """True if every conversation that satisfies `given` satisfies `wanted`."""
    if wanted.which == "any":
        is_same_message = wanted.role in (None, given.role)
    else:
        is_same_message = (wanted.which, wanted.role) == (given.which, given.role)
    return is_same_message and _text_follows(wanted, given)


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
