"""Requests in the form that rules match, and script files in YAML."""

from collections.abc import Mapping
from pathlib import Path
from random import Random

from app.core.api.fault import RequestFacts
from app.extensions.forms.constraints import FormConstraints
from app.extensions.scripts.matched_request import MatchedRequest, Message
from app.extensions.scripts.script_file import RuleContext
from app.extensions.scripts.script_set import SchemaCheck, ScriptSet

NOON_S = 1_700_000_000.0


def request(
    *texts: str | tuple[str, ...],
    api: str = "chat",
    model: str = "tiny",
    tools: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
    key: str = "key:1",
) -> MatchedRequest:
    """A request with these messages: a text is a user's, a tuple is role, text and tool."""
    messages = []
    for text in texts:
        if isinstance(text, str):
            messages.append(Message("user", text))
        else:
            messages.append(Message(*text))
    request_headers = headers or {}

    def header(name: str) -> str | None:
        return request_headers.get(name.lower())

    def client_key() -> str:
        return key

    facts = RequestFacts("", model, header, client_key)
    return MatchedRequest(api, facts, messages, tools or {})


def stopped_clock() -> float:
    return 0.0


def noon() -> float:
    return NOON_S


class Books:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, text: str, name: str = "a.yaml") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def open(self, *texts: str, model: str = "") -> ScriptSet:
        """A book of one file for each text; the time stands still at 0 s, and at `NOON_S`."""
        files = [
            (model, str(self.write(text, f"{number}.yaml"))) for number, text in enumerate(texts)
        ]
        context = RuleContext(Random(1), stopped_clock, SchemaCheck(FormConstraints()))
        return ScriptSet(files, context, noon)


def reply_text(book: ScriptSet, matched_request: MatchedRequest) -> str | None:
    """The text of the rule that answers, or None."""
    decision = book.decide(matched_request)
    return None if decision is None or decision.answer is None else decision.answer.reply.text
