"""Requests and answers of POST /v1/decisions; answers have their keys in vLLM's order."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from app.core.protocol import rules
from app.core.protocol.coercion import ConversionError, LaxFields
from app.core.protocol.completions import CompletionRequest, TokenIds
from app.core.protocol.convert import convert_value
from app.core.protocol.decoding import RawRequest, Request
from app.core.server.http.errors import malformed

ShortText = Annotated[str, Meta(max_length=1048576)]
InputText = Annotated[str, Meta(max_length=10485760)]


def convert_boolean(value: object) -> object:
    """Returns a boolean; raises `ConversionError` for all that only stands for one."""
    if not isinstance(value, bool):
        raise ConversionError("true or false")
    return value


def convert_choice_value(value: object) -> object:
    """Returns a string or a boolean, or raises `ConversionError`."""
    if not isinstance(value, str | bool):
        raise ConversionError("a string, true, or false", "str")
    return value


class InputPart(Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message, which is a text."""

    type: Literal["input_text"]
    text: InputText


class InputMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """A message of the user."""

    role: Literal["user"]
    content: InputText | Annotated[list[InputPart], Meta(max_length=16384)]
    type: Literal["message"] = "message"

    @property
    def text(self) -> str:
        """The parts of the message, one a line."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


MessageList = Annotated[list[InputMessage], Meta(max_length=131072)]


def convert_input(value: object) -> object:
    """Returns a text or messages; errors have the path of a text, as in vLLM."""
    try:
        if isinstance(value, list):
            check_images(value)
            return convert_value(MessageList, value)
        return convert_value(InputText, value)
    except ConversionError as error:
        place = ".".join(map(str, ("input", *error.path)))
        raise ConversionError(f"{error.expected} at {place}", "constrained-str") from None


def check_images(messages: list[object]) -> None:
    """Raises `ConversionError` for a message with an image."""
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            continue
        if any(isinstance(part, dict) and part.get("type") == "input_image" for part in content):
            raise ConversionError(
                "text: Decisions supports text input only; images are not supported", index
            )


class QuestionFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of all questions. A `name` of null is refused."""

    instructions: ShortText
    name: ShortText | None | UnsetType = UNSET

    @property
    def shown_name(self) -> str | None:
        """The name in the answer."""
        if self.name is UNSET:
            return None
        return self.name

    def problem(self) -> str:
        """Returns what is wrong with the question as a whole; empty if nothing is."""
        if self.name is None:
            return "name must be a string when provided"
        return ""


class PredicateQuestion(QuestionFields, kw_only=True, tag_field="type", tag="predicate"):
    """Asks if something is true."""


class ChoiceOption(Struct, kw_only=True, forbid_unknown_fields=True):
    """An answer to choose."""

    value: str | bool
    description: ShortText = ""

    lax_fields: ClassVar[LaxFields] = {"value": convert_choice_value}


class ChoiceQuestion(QuestionFields, kw_only=True, tag_field="type", tag="choice"):
    """Asks for one of several answers."""

    choices: Annotated[list[ChoiceOption], Meta(min_length=2, max_length=255)]

    def problem(self) -> str:
        """Returns what is wrong with the question as a whole; empty if nothing is."""
        values = {(type(choice.value), choice.value) for choice in self.choices}
        problem = super().problem()
        if not problem and len(values) < len(self.choices):
            problem = "choice values must be distinct"
        return problem


class ScoreLevel(Struct, kw_only=True, forbid_unknown_fields=True):
    """A level of a scale."""

    label: ShortText
    description: ShortText = ""


class ScoreQuestion(QuestionFields, kw_only=True, tag_field="type", tag="score"):
    """Asks for a level of a scale, the lowest first."""

    levels: Annotated[list[ScoreLevel], Meta(min_length=2, max_length=10)]


AnyQuestion = PredicateQuestion | ChoiceQuestion | ScoreQuestion


class DecisionsRequest(Request, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/decisions``; `joint` is for diffusion models."""

    model: ShortText
    input: str | list[InputMessage]
    questions: Annotated[list[AnyQuestion], Meta(min_length=1, max_length=200)]
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    joint: bool = False
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None

    lax_fields: ClassVar[LaxFields] = {"input": convert_input, "joint": convert_boolean}

    def check_rules(self: "DecisionsRequest | RawRequest") -> None:
        """Checks the cache salt."""
        rules.check_cache_salt(self.cache_salt)

    def check_converted(self) -> None:
        """Checks each question as a whole."""
        for number, question in enumerate(self.questions):
            problem = question.problem()
            if problem:
                param = f"body.questions.{number}.{question.__struct_config__.tag}"
                raise malformed(f"{param}: {problem}", param)

    @property
    def text(self) -> str:
        """The subject of the questions."""
        if isinstance(self.input, str):
            return self.input
        return "\n\n".join(message.text for message in self.input)

    def as_completion(self, label_ids: TokenIds) -> CompletionRequest:
        """Returns the completion, without prompts, that reads the log probabilities of a token."""
        return CompletionRequest(
            model=self.model,
            cache_salt=self.cache_salt,
            max_tokens=1,
            logprob_token_ids=label_ids,
        )


class PredicateAnswer(Struct, kw_only=True, tag_field="type", tag="predicate"):
    """Probability that it is true."""

    name: str | None
    probability: float


class ChoiceProbability(Struct, kw_only=True):
    """Probability of one choice."""

    value: str | bool
    probability: float


class ChoiceAnswer(Struct, kw_only=True, tag_field="type", tag="choice"):
    """The likeliest choice; `confidence` is its probability among all texts."""

    name: str | None
    choice: str | bool
    probabilities: Sequence[ChoiceProbability]
    confidence: float


class ScoreProbability(Struct, kw_only=True):
    """Probability of one level."""

    value: int
    label: str
    probability: float


class ScoreAnswer(Struct, kw_only=True, tag_field="type", tag="score"):
    """The expected level, counted from 0."""

    name: str | None
    score: float
    probabilities: Sequence[ScoreProbability]
    confidence: float


AnyAnswer = PredicateAnswer | ChoiceAnswer | ScoreAnswer


class InputDetails(Struct, kw_only=True):
    """Prompt tokens that were cached, and that are cached now."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Struct, kw_only=True):
    """There are no thoughts."""

    reasoning_tokens: int = 0


class DecisionsUsage(Struct, kw_only=True):
    """Tokens of all questions."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class DecisionsAnswer(Struct, kw_only=True):
    """An answer for each question, in order."""

    model: str
    answers: Sequence[AnyAnswer]
    usage: DecisionsUsage
