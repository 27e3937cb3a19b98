"""A hook of mkdocs (mkdocs.yml) that adds a page for each extension, made of its docstring.

The pages are not in the repository. `reference-extensions.md`, which is, lists all extensions; on
the site, the names in its first column lead to the pages.
"""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
LIST = "reference-extensions.md"
NAME = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages."""
    pages = _pages()
    for name in pages.parts():
        page = File.generated(config, f"extension-{name}.md", content=pages.extension_page(name))
        page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **unused: object) -> str:
    """Links the names of the extensions in the list to their pages."""
    if page.file.src_path != LIST:
        return markdown
    return NAME.sub(r"| [`\1`](extension-\1.md) |", markdown)


def _pages() -> Any:
    """Imports the generator from the checkout: mkdocs loads hooks without their package."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from scripts import reference_extensions

    return reference_extensions
