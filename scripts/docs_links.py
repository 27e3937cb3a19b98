"""A hook of mkdocs (mkdocs.yml): what GitHub reads otherwise than mkdocs, links to other files
first of all.

On GitHub `[a script](../examples/scripts/dinner.yaml)` leads to the file. The site has no such file: there
the link leads to the repository, if REPO_URL names it, or becomes the path as text. In the code of a table
GitHub wants `\\|` for a bar, and mkdocs would show both characters.
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
    """Rewrites the links of a page. Warns, and so fails the site, if a file is not there."""

    def rewrite(link: re.Match[str]) -> str:
        text, path = link.groups()
        if not (ROOT / path).exists():
            log.warning(f"{page.file.src_path}: links to ../{path}, which is not there")
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/HEAD/{path})"
        return text if Path(path).name in text else f"{text} (`{path}`)"

    markdown = ROW.sub(
        lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown
    )
    return OUTSIDE.sub(rewrite, markdown)
