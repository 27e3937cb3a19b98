"""Counts the words, the page lengths and the sentence lengths of the documentation.

    $ python -m scripts.prose_figures          # totals, and the pages beyond a limit
    $ python -m scripts.prose_figures --pages  # every page
    $ python -m scripts.prose_figures --list   # the unclear phrases, and the longest sentences
    $ python -m scripts.prose_figures --sentences  # every sentence in a line, for other linters

Words are those of prose, code and tables: tokens with a letter or a digit, so that
the bars of tables do not count. The second count, that of `wc -w`, includes the bars.
Generated pages, and generated regions of others, are counted separately. The exit status is 1
above a limit.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.generated_page import MARKER
from scripts.plain_words import SHAPES

ROOT = Path(__file__).resolve().parent.parent
COUNTED = ("README.md", "CONTRIBUTING.md", "docs/*.md")
"""Pages of the total."""
ALSO_READ = (".github/SECURITY.md", "CHANGELOG.md", "clients/js/README.md")
"""Pages whose sentences are measured, too."""
MAX_PAGE_WORDS = 1_600
MAX_AVERAGE = 18.0
"""Words of an average sentence, over all pages and in each table of generated help texts."""
MAX_PAGE_AVERAGE = 20.0
"""Words of an average sentence of one page."""
MAX_UNCLEAR = 0
"""Unclear phrases in all pages."""
LONG_SENTENCE = 40
MIN_HELP_WORDS = 4
"""Words of a sentence of a help text; shorter ones are remarks such as "Live."."""

REGION = re.compile(r"<!-- made: \S+ -->.*?<!-- end -->", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^\n(?: {4,}|\t)\S.*\n)(?:(?: {4,}|\t).*\n|\n)*", re.MULTILINE)
TABLE = re.compile(r"^ *\|.*\n?", re.MULTILINE)
HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
PAGE_LINK = re.compile(r"\]\((?:[\w./]*/)?([\w-]+\.md)(?:#[^)]*)?\)")
"""A link to a page; its group is the name of the file."""
CODE = re.compile(r"``.+?``|`[^`]*`", re.DOTALL)
ITEM = re.compile(r"^ *(?:[*+-]|\d+\.) +", re.MULTILINE)
BLOCK_END = re.compile(r"\n\s*\n|\n(?= *(?:[*+-]|\d+\.) )")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9`])")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf)\.")
WORD = re.compile(r"\w")
CODE_WORD = "CODE"
"""Word that stands for a piece of code in a sentence."""
UNCLEAR = {
    "people": SHAPES["people"],
    "riddle": re.compile(
        r"\b(?:is|are|was|were|of|for|by|to|with|at|on|and|or|than|as) (?:what|those)\b"
        r"|\bof which\b|\bthe like\b|\bof its own\b|\bwhat (?:it|they) (?:is|are|has|have)\b",
        re.IGNORECASE,
    ),
    "dialect": re.compile(
        r"\b(?:Not forgotten|as it comes|as it is|so many|another one|there(?:by|of))\b"
        r"|\b(?:is|are) no (?:\w+), but\b|(?:^|[.:] )(?:Who|Whom|Whose|That it) "
    ),
}


@dataclass(frozen=True, slots=True)
class PageFigures:
    """Figures of one page."""

    name: str
    words: int
    all_tokens: int
    """Words as `wc -w` counts them, generated ones excluded."""
    generated_words: int
    sentences: tuple[str, ...]
    unclear: tuple[str, ...]

    @property
    def sentence_words(self) -> int:
        """Words of all sentences."""
        return sum(len(sentence.split()) for sentence in self.sentences)

    @property
    def average(self) -> float:
        """Words of an average sentence; 0 for a page without sentences."""
        if not self.sentences:
            return 0.0
        return self.sentence_words / len(self.sentences)


def figures(name: str, text: str) -> PageFigures:
    """Returns the figures of a page with this text in Markdown."""
    if text.startswith(MARKER):
        return PageFigures(
            name,
            words=0,
            all_tokens=0,
            generated_words=count_words(text),
            sentences=(),
            unclear=(),
        )
    written = REGION.sub("", text)
    words = count_words(written)
    plain = prose(written)
    return PageFigures(
        name=name,
        words=words,
        all_tokens=len(written.split()),
        generated_words=count_words(text) - words,
        sentences=tuple(sentences(plain)),
        unclear=tuple(unclear_phrases(plain)),
    )


def count_words(text: str) -> int:
    """Returns the number of words of a text in Markdown."""
    return sum(1 for token in text.split() if WORD.search(token))


def prose(text: str, code: str = CODE_WORD) -> str:
    """Returns the text without code blocks, tables, headings, images and link addresses.

    A piece of inline code is replaced by `code`, and kept if that is empty.
    """
    for pattern in (FENCE, REGION, COMMENT, TABLE, HEADING, IMAGE, INDENTED):
        text = pattern.sub("\n", text)
    text = LINK.sub(r"\1", text).replace("**", "")
    if not code:
        return text
    return CODE.sub(code, text)


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences of a text. A list item without a full stop is a sentence, too."""
    for block in BLOCK_END.split(text):
        line = " ".join(ITEM.sub("", block).split())
        line = ABBREVIATION.sub(r"\1", line)
        for sentence in SENTENCE_END.split(line):
            if WORD.search(sentence):
                yield sentence


def unclear_phrases(text: str) -> Iterator[str]:
    """Yields each unclear phrase with its surroundings."""
    line = " ".join(text.split())
    for rule, pattern in UNCLEAR.items():
        for match in pattern.finditer(line):
            yield f"{rule}: ...{line[max(match.start() - 30, 0) : match.end() + 30]}..."


def help_figures(text: str) -> PageFigures:
    """Returns the figures of the help texts: the last column of a generated page."""
    cells = [row.split(" | ")[-1].strip(" |") for row in text.splitlines() if "` | " in row]
    plain = "\n\n".join(CODE.sub(CODE_WORD, LINK.sub(r"\1", cell)) for cell in cells)
    whole = [text for text in sentences(plain) if len(text.split()) >= MIN_HELP_WORDS]
    return PageFigures(
        name="help texts",
        words=0,
        all_tokens=0,
        generated_words=0,
        sentences=tuple(whole),
        unclear=tuple(unclear_phrases(plain)),
    )


def read_pages(patterns: Iterable[str]) -> list[PageFigures]:
    """Returns the figures of the files that match the patterns."""
    paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return [figures(str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in paths]


def all_pages() -> list[PageFigures]:
    """Returns the figures of all pages, and of the help texts."""
    help_page = ROOT / "docs" / "reference-settings.md"
    return [*read_pages((*COUNTED, *ALSO_READ)), help_figures(help_page.read_text("utf-8"))]


def average_of(pages: Sequence[PageFigures]) -> float:
    """Returns the words of an average sentence of several pages."""
    count = sum(len(page.sentences) for page in pages)
    return sum(page.sentence_words for page in pages) / max(count, 1)


def complaints(read: Sequence[PageFigures]) -> list[str]:
    """Returns a line for each limit that is exceeded."""
    lines = []
    average = average_of(read)
    unclear = sum(len(page.unclear) for page in read)
    if average > MAX_AVERAGE:
        lines.append(f"{average:.1f} words per sentence, at most {MAX_AVERAGE:g}")
    if unclear > MAX_UNCLEAR:
        lines.append(f"{unclear} unclear phrases, at most {MAX_UNCLEAR} (--list shows them)")
    for page in read:
        if page.words > MAX_PAGE_WORDS:
            lines.append(f"{page.name}: {page.words:,} words, at most {MAX_PAGE_WORDS:,}")
        if page.average > MAX_PAGE_AVERAGE:
            lines.append(
                f"{page.name}: {page.average:.1f} words per sentence, at most {MAX_PAGE_AVERAGE:g}"
            )
    return lines


def unlinked(texts: Mapping[str, str]) -> list[str]:
    """Returns a line for each page of docs without a link from another page.

    `texts` are the texts of the pages by their names, such as `docs/api.md`.
    """
    linked = set()
    for name, text in texts.items():
        for target in PAGE_LINK.findall(text):
            if f"docs/{target}" != name:
                linked.add(f"docs/{target}")
    pages = [name for name in texts if name.startswith("docs/")]
    return [f"{name}: no other page has a link to it" for name in pages if name not in linked]


def print_pages(read: Sequence[PageFigures]) -> None:
    """Prints the figures of each page."""
    for page in read:
        print(f"{page.words:6,} words, {page.average:4.1f} per sentence  {page.name}")


def print_findings(read: Sequence[PageFigures]) -> None:
    """Prints the unclear phrases and the longest sentences."""
    for page in read:
        for phrase in page.unclear:
            print(f"{page.name}: {phrase}")
        for sentence in page.sentences:
            length = len(sentence.split())
            if length > LONG_SENTENCE:
                print(f"{page.name}: {length} words: {sentence[:100]}")


def print_sentences(read: Sequence[PageFigures]) -> None:
    """Prints each sentence as a paragraph. Pieces of code are numbered, as no two are alike."""
    for page in read:
        for sentence in page.sentences:
            first, *following = sentence.split(CODE_WORD)
            numbered = [f"{CODE_WORD}{number}{text}" for number, text in enumerate(following)]
            print(first, *numbered, sep="", end="\n\n")


def main(arguments: Sequence[str]) -> int:
    """Prints the figures; returns the exit status."""
    read = all_pages()
    if "--sentences" in arguments:
        print_sentences(read)
        return 0
    if "--pages" in arguments:
        print_pages(read)
    if "--list" in arguments:
        print_findings(read)
    counted = read_pages(COUNTED)
    longest = max(counted, key=_words)
    print(
        f"{sum(map(_words, counted)):,} words in {len(counted)} pages"
        f" ({sum(page.all_tokens for page in counted):,} by wc -w;"
        f" generated: {sum(page.generated_words for page in counted):,});"
        f" longest page {longest.name} with {longest.words:,};"
        f" {average_of(read):.1f} words per sentence"
    )
    paths = [path for pattern in COUNTED for path in sorted(ROOT.glob(pattern))]
    texts = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}
    lines = [*complaints(read), *unlinked(texts)]
    for line in lines:
        print(line)
    return int(bool(lines))


def _words(page: PageFigures) -> int:
    return page.words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
