"""The list of all pages for language models, docs/llms.txt (https://llmstxt.org).

`python -m scripts.reference_pages` writes it: the sections of the site, and the first sentence of
each page.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from scripts.generated_page import DOCS
from scripts.prose_figures import prose, sentences

PATH = DOCS / "llms.txt"
SITE = DOCS.parent / "mkdocs.yml"
SECTION = re.compile(r"  - ([\w ]+):")
"""A section of the site's navigation."""
PAGE = re.compile(r"(?:      - |  - Home: )([\w-]+\.md)")
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
HEAD = """# Understudy

> A stand-in for vLLM, without a model and without a GPU: the same API, metrics, scheduling and
> timing. It tests clients, agents, routers and dashboards, and plans capacity.

## Home

"""


def llms_txt() -> str:
    """Returns the text of the list."""
    navigation = SITE.read_text("utf-8").partition("\nnav:\n")[2]
    return HEAD + "".join(f"{line}\n" for line in _lines(navigation))


def _lines(navigation: str) -> Iterator[str]:
    for line in navigation.splitlines():
        page = PAGE.fullmatch(line)
        section = SECTION.fullmatch(line)
        if page is not None:
            yield _entry(DOCS / page[1])
        elif section is not None:
            yield from ("", f"## {section[1]}", "")


def _entry(path: Path) -> str:
    """Returns the line of a page: its title, and its first sentence unless it is generated."""
    text = path.read_text("utf-8")
    [title, *_] = TITLE.findall(text)
    entry = f"- [{title}]({path.name})"
    first = next(sentences(prose(text, code="")), "")
    if first:
        entry += f": {first}"
    return entry
