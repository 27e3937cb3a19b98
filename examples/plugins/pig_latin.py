"""Answers in pig latin, as long as its setting or the request's header X-Pig-Latin says so.

python -m app --plugin examples/plugins/pig_latin.py --pig-latin-share 50
"""

import re
from random import Random
from typing import Annotated

from app.plugins import About, EngineRequest, Percent, PluginHost, ReplyHook, Section, hookimpl

API = 1
VERSION = "1.0"
WORD = re.compile(r"([^aeiou\W\d_]*)([a-z]*)", re.IGNORECASE)


class Settings(Section, frozen=True, kw_only=True):
    """Pig latin."""

    share: Annotated[Percent, About("Replies in pig latin.", unit="%", live=True)] = 100


def pig_latin(text: str) -> str:
    """Each word with its first consonants behind it, and `ay`."""
    return WORD.sub(lambda word: f"{word[2]}{word[1]}ay".lower() if word[0] else "", text)


@hookimpl
def reply(host: PluginHost) -> ReplyHook:
    def said(request: EngineRequest, rng: Random) -> str | None:
        http = host.request()
        asked = http is not None and http.headers.get("x-pig-latin") == "please"
        if asked or rng.random() * 100 < host.settings.share:
            return pig_latin(request.echo_text)
        return None

    return said
