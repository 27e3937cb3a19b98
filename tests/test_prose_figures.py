"""The figures of the documentation: words, sentences and unclear phrases."""

import pytest

from scripts.generated_page import MARKER
from scripts.prose_figures import (
    MAX_PAGE_WORDS,
    PageFigures,
    complaints,
    figures,
    sentences,
    unlinked,
)

PAGE = """# Title of four words

The server sends a `token`. It closes
the connection!

* An item without a full stop
* A [link](page.md) counts as text.

| a | table |
|---|---|
| is | not prose |

```console
$ a command. Not prose.
```
"""


def test_sentences_are_counted_only_in_prose() -> None:
    page = figures("page.md", PAGE)
    assert page.words == 34
    assert page.sentences == (
        "The server sends a CODE.",
        "It closes the connection!",
        "An item without a full stop",
        "A link counts as text.",
    )
    assert page.average == pytest.approx((5 + 4 + 6 + 5) / 4)


def test_words_of_generated_text_are_counted_separately() -> None:
    region = "One. <!-- made: x --> two three <!-- end --> Four."
    assert figures("a.md", region).words == 2
    assert figures("a.md", region).generated_words == 5
    generated = figures("b.md", f"{MARKER}\n\n# Settings\n")
    assert (generated.words, generated.sentences) == (0, ())
    assert generated.generated_words > 0


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Nobody reads it.", "people"),
        ("The port is what a client needs.", "riddle"),
        ("Not forgotten are metrics.", "dialect"),
    ],
)
def test_example_of_each_kind_of_unclear_phrase_is_found(text: str, rule: str) -> None:
    [phrase] = figures("page.md", text).unclear
    assert phrase.startswith(f"{rule}: ")


def test_abbreviation_or_number_does_not_end_a_sentence() -> None:
    assert list(sentences("Use vLLM 0.32. It works, e.g. with A.")) == [
        "Use vLLM 0.32.",
        "It works, e.g with A.",
    ]


def test_each_exceeded_prose_limit_is_reported() -> None:
    long_page = PageFigures(
        name="long.md",
        words=MAX_PAGE_WORDS + 1,
        all_tokens=MAX_PAGE_WORDS + 1,
        generated_words=0,
        sentences=(" ".join(["word"] * 30),),
        unclear=("riddle: x",),
    )
    lines = complaints([long_page])
    assert [line.partition(":")[0] for line in lines] == [
        "30.0 words per sentence, at most 18",
        "1 unclear phrases, at most 0 (--list shows them)",
        "long.md",
        "long.md",
    ]
    assert complaints([]) == []


def test_page_without_a_link_from_another_page_is_reported() -> None:
    texts = {
        "README.md": "See [the API](docs/api.md#chat).",
        "docs/api.md": "See [this page](api.md) and [below](#chat).",
        "docs/lost.md": "See [this page](lost.md), which [nothing](lost.md#a) else names: `lost.md`.",
    }
    assert unlinked(texts) == ["docs/lost.md: no other page has a link to it"]
