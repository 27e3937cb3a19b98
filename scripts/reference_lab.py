"""Options of the workbench's commands, from their parsers: a page of the documentation.

$ python -m scripts.reference_lab
"""

import argparse
import re
from collections.abc import Iterator

from scripts.generated_page import Page, Section, code, one_line
from workbench.fleet import fleet_flags
from workbench.judge import command as judge_command
from workbench.plan import plan_flags
from workbench.runs import calibrate, record, simulate_flags

PARSERS = {
    "simulate": simulate_flags.make_parser,
    "plan": plan_flags.make_parser,
    "record": record.make_parser,
    "calibrate": calibrate.make_parser,
    "fleet": fleet_flags.make_parser,
    "judge": judge_command.make_parser,
}
"""Command -> function that makes its parser."""
DEFAULT = re.compile(r" \[([^\[\]]+)\]$")
"""Default of an option, at the end of its help."""
COLUMNS = ("option", "default", "meaning")


def lab_page() -> Page:
    """Returns docs/reference-lab.md."""
    sections = [
        Section(command, COLUMNS, list(_rows(make_parser())))
        for command, make_parser in PARSERS.items()
    ]
    return Page("reference-lab.md", "Options of the lab's commands", sections)


def _rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, str]]:
    """Yields a row for each option of a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        meaning, default = _meaning_and_default(action)
        yield _names(action), default, meaning


def _meaning_and_default(action: argparse.Action) -> tuple[str, str]:
    """Splits the help of an option, whose default is in brackets at its end."""
    meaning = one_line((action.help or "").replace("%%", "%"))
    default = DEFAULT.search(meaning)
    if default is None:
        return meaning, ""
    return meaning[: default.start()], default[1]


def _names(action: argparse.Action) -> str:
    """Returns the names of an option with the metavariable of its value."""
    names = ", ".join(action.option_strings)
    return code(f"{names} {_metavar(action)}".strip())


def _metavar(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction) or action.nargs == 0:
        return ""
    if action.metavar is None and action.choices is not None:
        return "{" + ",".join(action.choices) + "}"
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    return action.metavar or action.dest.upper()


def main() -> None:
    """Writes the page."""
    page = lab_page()
    page.path.write_text(page.markdown(), "utf-8")


if __name__ == "__main__":
    main()
