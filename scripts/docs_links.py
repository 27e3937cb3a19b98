r"""A hook of mkdocs (mkdocs.yml) for what GitHub and mkdocs render differently.

On GitHub, `[a script](../examples/scripts/dinner.yaml)` leads to the file. The site does not have
the file: the link leads to the repository if REPO_URL names it, and otherwise becomes text. In the
code of a table, GitHub needs `\|` for a bar, and mkdocs would show both characters.
"""

import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(?:#[^)]*)?\)")
ROW = re.compile(r"^ *\|.*", re.MULTILINE)
CODE = re.compile(r"`[^`]+`")
log = logging.getLogger("mkdocs.hooks.docs_links")


def on_page_markdown(markdown: str, page: Any, config: Any, **others: object) -> str:
    """Rewrites the links of a page. Warns, and so fails the site, if a file does not exist."""

    def rewrite(link: re.Match[str]) -> str:
        text, path = link.groups()
        if not (ROOT / path).exists():
            log.warning(f"{page.file.src_path}: links to ../{path}, which does not exist")
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/HEAD/{path})"
        if Path(path).name in text:
            return text
        return f"{text} (`{path}`)"

    return OUTSIDE.sub(rewrite, ROW.sub(_with_plain_bars, markdown))


def _with_plain_bars(row: re.Match[str]) -> str:
    return CODE.sub(_with_plain_bar, row[0])


def _with_plain_bar(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")
