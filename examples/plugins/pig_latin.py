"""Replies in pig latin, for a share of the requests, and for requests with X-Pig-Latin.

understudy --plugin examples/plugins/pig_latin.py --pig-latin-share 50
"""

import re
from collections.abc import Callable
from random import Random
from typing import Annotated

from app.plugins import About, EngineRequest, Percent, Plugin, Section

API = 2
VERSION = "1.0"
WORD = re.compile(r"([^aeiou\W\d_]*)([a-z]*)", re.IGNORECASE)


class ShareSettings(Section, frozen=True, kw_only=True):
    """Pig latin."""

    share: Annotated[Percent, About("Replies in pig latin.", unit="%", live=True)] = 100


def pig_latin(text: str) -> str:
    """Returns each word with its first consonants moved to its end, and `ay`."""
    return WORD.sub(_moved, text)


def _moved(word: re.Match[str]) -> str:
    return f"{word[2]}{word[1]}ay".lower() if word[0] else ""


class PigLatin(Plugin):
    """Repeats the last message in pig latin."""

    name = "pig-latin"
    Settings = ShareSettings

    def reply(self) -> Callable[[EngineRequest, Random], str | None]:
        """Returns the function that writes replies."""
        return self._reply

    def _reply(self, request: EngineRequest, rng: Random) -> str | None:
        http = self.request()
        is_wanted = http is not None and http.headers.get("x-pig-latin") == "please"
        if is_wanted or rng.random() * 100 < self.settings.share:
            return pig_latin(request.echo_text)
        return None


EXTENSION = PigLatin
