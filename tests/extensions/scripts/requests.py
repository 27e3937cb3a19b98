"""Requests as rules see them, and books of rules written as YAML."""

from collections.abc import Mapping
from pathlib import Path
from random import Random

from app.core.api.fault import RequestFacts
from app.extensions.forms.constraints import FormConstraints
from app.extensions.scripts.matched_request import MatchedRequest, Message
from app.extensions.scripts.script_set import SchemaCheck, ScriptSet

NOON_S = 1_700_000_000.0


def request(
    *said: str | tuple[str, ...],
    api: str = "chat",
    model: str = "tiny",
    tools: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
    key: str = "key:1",
) -> MatchedRequest:
    """A request with these messages: a text is a user's, a tuple is role, text and tool."""
    messages = [Message("user", each) if isinstance(each, str) else Message(*each) for each in said]
    given = headers or {}
    facts = RequestFacts("", model, lambda name: given.get(name.lower()), lambda: key)
    return MatchedRequest(api, facts, messages, tools or {})


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
        return ScriptSet(
            files, Random(1), lambda: 0.0, lambda: NOON_S, SchemaCheck(FormConstraints())
        )


def said(book: ScriptSet, asked: MatchedRequest) -> str | None:
    """The text that a rule says; None where none answers."""
    decision = book.decide(asked)
    return None if decision is None or decision.answer is None else decision.answer.reply.text
