"""What is said."""

from dataclasses import dataclass
from typing import Literal

from config.fields import setting
from config.rules import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplySettings:
    """What is said."""

    mode: Literal["random", "echo"] = setting(
        "random", help="Sample sentences of random length, or the text of the last message."
    )
    seed: int | None = setting(
        None, help="Seed of everything that is random; different at every start when empty."
    )
    reasoning_parser: str = setting(
        "",
        help="Any name makes the model think aloud first; the thoughts are in `reasoning`. Empty is off.",
    )
    reasoning_tokens: int = setting(
        24,
        unit="tokens",
        live=True,
        help="Mean length of the thoughts of a reasoning model.",
        rule=at_least(1),
    )
