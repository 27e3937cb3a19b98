"""Draws random strings that satisfy a merged schema."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from random import Random

from app.extensions.forms.schema.bounds import UnsatisfiableError, WorkBudget
from app.extensions.forms.schema.formats import WORDS, format_checker, format_writers
from app.extensions.forms.schema.merged_schema import MergedSchema
from app.extensions.forms.schema.patterns import MAX_TEXT_LENGTH

TEXTS_BY_NAME: Mapping[str, tuple[str, ...]] = {
    "city": ("Lisbon", "Nairobi", "Osaka", "Quito", "Tromso"),
    "country": ("Portugal", "Kenya", "Japan", "Ecuador", "Norway"),
    "location": ("Lisbon, Portugal", "Osaka, Japan", "Quito, Ecuador"),
    "address": ("12 Mill Lane", "7 Harbor Street", "48 Station Road"),
    "timezone": ("Europe/Lisbon", "Asia/Tokyo", "Africa/Nairobi"),
    "language": ("en", "pt", "ja", "sw"),
    "currency": ("EUR", "JPY", "KES", "NOK"),
    "email": ("ada@example.com", "kofi@example.org", "mei@example.net"),
    "phone": ("+1 555 0100", "+1 555 0142", "+1 555 0199"),
    "url": ("https://example.com/docs", "https://example.org/list"),
    "datetime": ("2026-03-14T09:30:00Z", "2026-10-02T18:00:00Z"),
    "timestamp": ("2026-03-14T09:30:00Z", "2026-10-02T18:00:00Z"),
    "date": ("2026-03-14", "2026-07-21", "2026-10-02"),
    "time": ("09:30", "14:05", "18:00"),
    "unit": ("celsius", "meters", "kilograms"),
    "color": ("teal", "amber", "violet", "olive"),
    "username": ("ada", "kofi", "mei", "tomas"),
    "filename": ("notes.txt", "report.pdf", "plan.md"),
    "file": ("notes.txt", "report.pdf", "plan.md"),
    "path": ("/srv/notes.txt", "docs/plan.md", "/tmp/report.csv"),
    "name": ("Ada", "Kofi", "Mei", "Tomas"),
    "title": ("Weekly plan", "Garden notes", "First draft"),
    "query": ("rain tomorrow", "train to Porto", "bread without yeast"),
    "question": ("When does it open?", "How far is it?"),
    "description": ("A short note", "Two lines about the trip"),
    "message": ("See you at noon", "The parcel has arrived"),
    "content": ("A short note", "Three things to do today"),
    "text": ("A short note", "The parcel has arrived"),
    "code": ("print('hello')", "total = 1 + 2"),
    "id": ("a1b2c3", "k7m4q9", "x5t8w2"),
}
"""Texts by the end of a property's name; the first match wins."""
MAX_NAME_LENGTH = 24
"""Characters of a property's name, from its end, that are compared."""
MAX_KNOWN_NAMES = 512
"""Ends of names whose texts are remembered: about 100 KB."""
FORMAT_WRITERS = format_writers()
FORMAT_CHECKER = format_checker()
MAX_ATTEMPTS = 12
MAX_BRIEF_LENGTH = 6
"""Maximum length of a brief text, unless the schema needs more."""
CHARACTERS_PER_STEP = 64


def draw_any_text(name: str, rng: Random, budget: WorkBudget) -> str:
    """Draws a string for the property `name` that nothing constrains, as `TextDraw` does."""
    text = rng.choice(texts_for(name))
    budget.spend(1 + len(text) // CHARACTERS_PER_STEP)
    return text


class TextDraw:
    """Draws a string for the property `name`.

    `formats` makes ``format`` a rule rather than an annotation.
    """

    def __init__(
        self, merged: MergedSchema, rng: Random, budget: WorkBudget, name: str, formats: bool
    ) -> None:
        self._merged = merged
        self._rng = rng
        self._budget = budget
        self._name = name
        self._patterns = merged.get("pattern", ())
        self._formats = merged.get("format", ())
        self._checks_formats = formats
        self._min_length = merged.minimum("minLength")
        self._max_length = merged.maximum("maxLength", MAX_TEXT_LENGTH)

    def draw(self, brief: bool) -> str:
        """Returns a text, a short one with `brief`. Raises UnsatisfiableError if none was found."""
        if brief and not self._patterns and not self._formats:
            self._max_length = min(self._max_length, max(self._min_length, MAX_BRIEF_LENGTH))
        if self._min_length > MAX_TEXT_LENGTH:
            raise UnsatisfiableError("a string would be too long")
        for text in self._candidates():
            self._budget.spend(1 + len(text) // CHARACTERS_PER_STEP)
            if self._accepts(text):
                return text
        raise UnsatisfiableError("could not find a string that satisfies the schema")

    def _accepts(self, text: str) -> bool:
        if not self._min_length <= len(text) <= self._max_length:
            return False
        if not all(pattern.matches(text, self._budget) for pattern in self._patterns):
            return False
        return not self._checks_formats or all(
            FORMAT_CHECKER.conforms(text, name) for name in self._formats
        )

    def _candidates(self) -> Iterator[str]:
        patterns = self._patterns
        formats = [name for name in self._formats if name in FORMAT_WRITERS]
        if formats or patterns:
            for attempt in range(MAX_ATTEMPTS):
                if formats:
                    yield FORMAT_WRITERS[formats[attempt % len(formats)]](self._rng)
                if patterns:
                    pattern = patterns[attempt % len(patterns)]
                    try:
                        yield pattern.write(
                            self._rng, self._budget, self._min_length, self._max_length
                        )
                    except UnsatisfiableError:
                        self._budget.spend()
        for example in self._merged.examples():
            if isinstance(example, str):
                yield example
        if not patterns:
            yield self._words()

    def _words(self) -> str:
        """Returns a text that suits the name, followed by words up to the minimum length."""
        words = [self._rng.choice(texts_for(self._name))]
        length = len(words[0])
        while length < self._min_length:
            words.append(self._rng.choice(WORDS))
            length += 1 + len(words[-1])
        text = " ".join(words)[: max(self._min_length, min(length, self._max_length))]
        if text.endswith(" "):
            return text[:-1] + "s"
        return text


def texts_for(name: str) -> tuple[str, ...]:
    """Returns texts for the property `name`, which nothing else constrains."""
    return _texts_for(name[-MAX_NAME_LENGTH:])


@lru_cache(MAX_KNOWN_NAMES)
def _texts_for(name: str) -> tuple[str, ...]:
    """Returns texts for a property whose name ends in `name`, as `home_city` or `fileName` do."""
    letters = "".join(filter(str.isalpha, name)).lower()
    for ending, texts in TEXTS_BY_NAME.items():
        if letters.endswith(ending):
            return texts
    return WORDS
