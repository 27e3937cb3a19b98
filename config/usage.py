"""The text of `python -m app --help`, made from the table."""

import textwrap

from config.fields import Setting
from config.table import ROOMS, TABLE

_WIDTH = 100
_COLUMN = 38
_INTRODUCTION = """\
usage: python -m app [--config FILE] [--setting value ...]

Plays a vLLM server on one port. A setting is taken from its flag, else from its environment variable,
else from the YAML file (--config, SIM_CONFIG), else it has its default.
"""
_OTHERS = (
    ("--config FILE", "YAML file with settings."),
    ("-v N", "klog verbosity: 0 and 1 log warnings, 2 and 3 info, 4 and more debug."),
    ("--version", "Show the version of this program and end."),
    ("-h, --help", "Show this text and end."),
)


def usage() -> str:
    """The whole help text, one section a room."""
    sections = [
        f"{room.__doc__}\n" + "".join(_entry(_flag(row), _help(row)) for row in TABLE if row.group == group)
        for group, room in ROOMS.items()
    ]
    return "\n".join([_INTRODUCTION, *sections, "Others.\n" + "".join(_entry(*other) for other in _OTHERS)])


def _flag(row: Setting) -> str:
    words = {"switch": "", "text": " TEXT", "duration": " DURATION", "JSON": " JSON"}
    words |= {"list": " TEXT ...", "list of objects": " JSON ..."}
    choices = row.type.removeprefix("one of ").replace(", ", "|")
    return f"--{row.name}" + words.get(row.type, " NUMBER" if "number" in row.type else f" {choices}")


def _help(row: Setting) -> str:
    default = row.kind.write(row.default)
    return f"{row.help} [{default}]" if default and not row.type.startswith("list") else row.help


def _entry(flag: str, text: str) -> str:
    lines = textwrap.wrap(text, _WIDTH - _COLUMN, break_on_hyphens=False)
    left = f"  {flag}".ljust(_COLUMN)
    if len(left) > _COLUMN:
        return left + "\n" + "".join(" " * _COLUMN + line + "\n" for line in lines)
    return left + ("\n" + " " * _COLUMN).join(lines) + "\n"
