"""Replies that are as long as what was asked, times a factor: long questions get long answers.

python -m app --plugin examples/plugins/as_long_as_the_prompt.py --as-long-as-the-prompt-factor 0.5
"""

from random import Random
from typing import Annotated

from msgspec import Meta

from app.plugins import About, EngineRequest, LengthHook, PluginHost, Section, hookimpl

API = 1
VERSION = "1.0"
Factor = Annotated[float, Meta(ge=0, le=100)]


class Settings(Section, frozen=True, kw_only=True):
    """Replies as long as the prompt."""

    factor: Annotated[Factor, About("Tokens of a reply for each of its prompt.", live=True)] = 1.0


@hookimpl
def length(host: PluginHost) -> LengthHook:
    def tokens(request: EngineRequest, rng: Random) -> int:
        at: Settings = host.settings
        return round(at.factor * len(request.prompt_ids))

    return tokens
