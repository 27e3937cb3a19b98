"""The help of `serve`, whole or for a search, and the flags that only this command has."""

from collections.abc import Mapping, Sequence

from config.command_line import ALL, help_flag, help_text, matching_help
from config.declaration import COMMAND
from config.flag_words import Flag
from config.settings import Table
from vllm_facts.facts import GROUPS
from vllm_facts.options import effect, option_flags

ABOUT = f"""\
usage: {COMMAND} serve [MODEL] [--option value ...]

MODEL is the name of the simulated model.
Accepts the command line of `vllm serve`; docs/reference-options.md has the effect of each option.
Also accepts the settings of Understudy ({COMMAND} run --help), unless vLLM has an option of that
name.
"""
EXAMPLES = f"""
Examples:
  {COMMAND} serve Qwen/Qwen3-8B --max-model-len 8192 --port 8001
  {COMMAND} serve Qwen/Qwen3-8B --api-key secret --script understudy/replies.yaml
"""
KEYWORDS = f"""
For full list:    {COMMAND} serve --help=all
For a section:    {COMMAND} serve --help=ModelConfig
For a flag:       {COMMAND} serve --help=max-model-len
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


def usage(table: Table, keyword: str = "") -> str:
    """Returns the names of the groups, as vLLM does, or the part that a keyword selects.

    A keyword is the name of a group, as in `--help=ModelConfig`, or a part of names of options, as
    in `--help=max-num-seqs`.
    """
    groups = _groups(table)
    if not keyword:
        titles = "".join(f"  {title}\n" for title in groups)
        return ABOUT + EXAMPLES + "\nConfig Groups:\n" + titles + KEYWORDS.rstrip()
    if keyword == ALL:
        return ABOUT + help_text(groups)
    return matching_help(groups, keyword)


def _groups(table: Table) -> Mapping[str, Sequence[Flag]]:
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
