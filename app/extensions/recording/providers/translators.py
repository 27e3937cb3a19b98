"""The translator of each provider's API: `translator_of`."""

import re
from collections.abc import Callable

from app.extensions.recording.conversation import Json
from app.extensions.recording.exchange import Exchange
from app.extensions.recording.providers import bedrock, cohere, gemini, ollama
from app.extensions.recording.providers.translated import TranslatedExchange

Translator = Callable[[Exchange, Json], TranslatedExchange]
TRANSLATORS: tuple[tuple[re.Pattern[str], Translator], ...] = (
    (gemini.PATH, gemini.translate),
    (bedrock.PATH, bedrock.translate),
    (cohere.PATH, cohere.translate),
    (ollama.PATH, ollama.translate),
)


def translator_of(path: str) -> Translator | None:
    """Returns the function that translates exchanges of a path; None for other paths.

    It takes the exchange and the JSON body of its request. It raises AttributeError, LookupError,
    TypeError or ValueError for an exchange that is not of the provider's API.
    """
    for pattern, translate in TRANSLATORS:
        if pattern.fullmatch(path):
            return translate
    return None
