"""The help of `serve`, whole or for a search, and the flags that only this command has."""

from collections.abc import Iterable, Mapping, Sequence

from config.command_line import help_flag, help_text
from config.declaration import COMMAND
from config.flag_words import Flag
from config.settings import Table
from config.vllm.facts import GROUPS
from config.vllm.options import effect, option_flags

ABOUT = f"""\
usage: {COMMAND} serve [MODEL] [--option value ...]

MODEL is the name of the simulated model.
Accepts the command line of `vllm serve`; docs/reference-options.md has the effect of each option.
Also accepts the settings of Understudy ({COMMAND} --help), unless vLLM has an option of that name.
"""
ALLOW_REMOVED = "allow-removed-options"
SKIP_CHECK = "skip-model-check"
SERVE_FLAGS = (
    Flag(
        name=ALLOW_REMOVED,
        forms=(f"--{ALLOW_REMOVED}",),
        takes="nothing",
        help="Ignore options that vLLM has removed, with a warning for each.",
    ),
    Flag(
        name=SKIP_CHECK,
        forms=(f"--{SKIP_CHECK}",),
        takes="nothing",
        help="Start with a folder that has no model, or without the file of a chat template.",
    ),
)
"""Flags that only this command has."""
SEARCH = "--help="
ALL = "all"


def without_keyword(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the keyword of `--help=KEYWORD`, and the words with `--help` instead."""
    keyword = ""
    words = []
    for word in argv:
        if word.startswith(SEARCH):
            keyword = word.removeprefix(SEARCH).lower().replace("_", "-")
            word = "--help"
        words.append(word)
    return keyword, words


def usage(table: Table, keyword: str = "") -> str:
    """Returns the help, or the part that a keyword selects as in vLLM.

    A keyword is the name of a group, as in `--help=ModelConfig`, or a part of names of options, as
    in `--help=max-num-seqs`.
    """
    groups = _groups(table)
    if keyword in ("", ALL):
        return ABOUT + help_text(groups)
    for title, flags in groups.items():
        if title.lower() == keyword:
            return help_text({title: flags})
    matches = [
        flag
        for flags in groups.values()
        for flag in flags
        if flag.help and any(keyword in form for form in flag.forms)
    ]
    if matches:
        return help_text({f"Arguments matching '{keyword}'": matches})
    return (
        f"No group or arguments matching '{keyword}'.\n"
        "Use '--help=all' to see all options, or the name of a group:\n  " + "\n  ".join(groups)
    )


def _groups(table: Table) -> Mapping[str, Iterable[Flag]]:
    """Returns the flags by the titles of vLLM's groups."""
    groups: dict[str, list[Flag]] = {}
    for title, options in GROUPS.items():
        flags = groups.setdefault(title, [])
        for name, option in options.items():
            text = effect(name, table) or "Accepted; changes nothing."
            if option.since:
                text += f" From vLLM {option.since} on."
            flags += option_flags(name, option, text)
    return {**groups, "Others": [*SERVE_FLAGS, help_flag()]}
