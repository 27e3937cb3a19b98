"""Runs proselint on the sentences of the documentation and of the help texts.

$ python -m scripts.prose_lint

Code, tables and headings are left out. Checks of typography are off, as sources have plain quotes.
"""

import sys

from proselint.checks import __register__
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

from scripts.prose_figures import all_pages

DISABLED = ("typography", "lexical_illusions", "restricted", "terms")
"""Checks of symbols, repeated words across paragraphs, lists of simple words, and animals."""


def main() -> int:
    """Prints each finding; returns the exit status."""
    registry = CheckRegistry()
    registry.register_many(__register__)
    groups = sorted({check.path.partition(".")[0] for check in registry.checks})
    checks = {group: group not in DISABLED for group in groups}
    count = 0
    for page in all_pages():
        if not page.sentences:
            continue
        for result in LintFile(page.name, "\n".join(page.sentences)).lint(
            {"checks": checks, "max_errors": 1000}
        ):
            finding = result.check_result
            sentence = page.sentences[min(result.pos[0], len(page.sentences)) - 1]
            print(f"{page.name}: {finding.check_path}: {finding.message}\n    {sentence}")
            count += 1
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
