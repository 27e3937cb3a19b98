"""What strings without a rule of their own say: short words and phrases, fitting the property's name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

WORDS = ("amber", "birch", "cobalt", "delta", "ember", "fjord", "grove", "harbor", "iris", "juniper")
"""Where a name suggests nothing."""

NAMED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
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
)
"""By what a property's name ends with; of several that fit, the first."""


def words_for(name: str) -> tuple[str, ...]:
    """Texts that suit a property called `name`, such as ``home_city`` or ``fileName``."""
    plain = "".join(filter(str.isalpha, name[-24:])).lower()
    for ending, texts in NAMED.items():
        if plain.endswith(ending):
            return texts
    return WORDS
