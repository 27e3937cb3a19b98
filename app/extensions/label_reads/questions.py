"""Questions of /v1/systemone: validation, text for the model, and answers."""

import math
import string
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import bad_request

FIELDS = frozenset(("type", "instructions", "criteria"))
LABELS: Mapping[str, Sequence[str]] = {
    "choice": string.ascii_uppercase,
    "noul": ("yes", "no"),
    "score": string.digits,
}
"""Labels by type of question, as in vLLM; `noul` is a question of yes or no."""
REPLY_WITH = {
    "choice": "the letter of an option",
    "noul": "yes or no",
    "score": "the number of a level",
}
CRITERIA_FORMS = {
    "choice": "an object of at least one option, each with a description or null",
    "noul": "an object with true and false",
    "score": "an ordered list of levels, at least two",
}
"""Criteria by type of question, in words that clients recognize."""


class Question(NamedTuple):
    """A valid question. `options` are names and descriptions; each has a label."""

    type: str
    instructions: object
    options: Sequence[tuple[str, object]]

    @property
    def labels(self) -> Sequence[str]:
        """The labels of the options."""
        return LABELS[self.type][: len(self.options)]

    @property
    def text(self) -> str:
        """The question as the model reads it; an option without a description shows its name."""
        lines = []
        if self.instructions:
            lines.append(f"Question: {self.instructions}")
        for label, (name, description) in zip(self.labels, self.options, strict=True):
            parts: list[object] = [label]
            if name != label:
                parts.append(name)
            parts.append(description)
            lines.append(": ".join(str(part) for part in parts if part))
        return "\n".join([*lines, f"Reply with {REPLY_WITH[self.type]} alone."])

    def answer(self, probabilities: Sequence[float]) -> tuple[JsonObject, JsonObject]:
        """Returns the answer and its diagnostics.

        `probabilities` has the probability of each label in the whole vocabulary.
        """
        mass = math.fsum(probabilities)
        shares = [probability / mass for probability in probabilities]
        max_share = max(shares)
        option_names = [name for name, _ in self.options]
        keys: Sequence[str] = option_names
        answer = JsonObject(type=self.type)
        if self.type == "choice":
            answer["choice"] = option_names[shares.index(max_share)]
        elif self.type == "noul":
            answer["noul"] = shares[0]
        else:
            keys = self.labels
            answer["score"] = sum(level * share for level, share in enumerate(shares))
            answer["legend"] = dict(zip(keys, option_names, strict=True))
        confidence = max_share * mass
        answer["probabilities"] = dict(zip(keys, shares, strict=True))
        answer["confidence"] = confidence
        return answer, {"label_mass": mass, "argmax_is_label": confidence > 1 - mass}


def read_question(name: str, fields: JsonObject) -> Question:
    """Validates a question by vLLM's rules, in vLLM's order.

    Raises:
        ApiError: 400 for an invalid question.
    """
    question_type = str(fields["type"])
    unknown_fields = sorted(fields.keys() - FIELDS)
    if unknown_fields:
        raise bad_request(f"question {name!r}: unknown field(s) {unknown_fields}")
    if not name:
        raise bad_request("the ID of a question must not be empty")
    if question_type not in LABELS:
        known_types = ", ".join(sorted(LABELS))
        raise bad_request(f"unknown question type {question_type!r}; the types are {known_types}")
    options = _read_options(question_type, fields.get("criteria"))
    max_options = len(LABELS[question_type])
    if not options:
        form = CRITERIA_FORMS[question_type]
        raise bad_request(f"question {name!r}: {question_type} criteria must be {form}")
    if len({option for option, _ in options}) < len(options):
        raise bad_request(f"question {name!r}: two options have the same name")
    if len(options) > max_options:
        raise bad_request(f"question {name!r}: at most {max_options} options are allowed")
    return Question(question_type, fields.get("instructions"), options)


def _read_options(question_type: str, criteria: object) -> Sequence[tuple[str, object]]:
    """Returns name and description of each option; none for criteria that do not fit the type."""
    if question_type == "noul" and criteria is None:
        criteria = {}
    if question_type == "score":
        if isinstance(criteria, list) and len(criteria) >= 2:
            return [(str(level), None) for level in criteria]
        return ()
    if not isinstance(criteria, dict):
        return ()
    if question_type == "choice":
        return list(criteria.items())
    if not criteria.keys() <= {"true", "false"}:
        return ()
    return ("yes", criteria.get("true")), ("no", criteria.get("false"))
