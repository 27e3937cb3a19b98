"""`understudy completion SHELL`: prints completions of the command `understudy` for a shell.

The flags of a command come from its help text.
"""

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress

from config.declaration import COMMAND
from config.flags import FlagParser, as_command

ABOUT = "Print completions of the command for a shell."
SHELLS = ("bash", "zsh", "fish")
OWN = ("help", "version", "--help", "--version", "--config")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
BASH = """\
_understudy() {
  case "${COMP_WORDS[1]}" in
%s
  esac
  [ "$COMP_CWORD" = 1 ] && words="%s"
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _understudy understudy
"""


@as_command()
def run(
    argv: Sequence[str],
    commands: Mapping[str, Callable[[Sequence[str]], int]],
    settings: Iterable[str],
) -> int:
    """Prints the completions and returns the exit status.

    `settings` are the flags without a command.
    """
    parser = FlagParser(f"{COMMAND} completion", description=ABOUT, allow_abbrev=False)
    parser.examples = (
        f"{COMMAND} completion bash >> ~/.bashrc",
        f"{COMMAND} completion zsh >> ~/.zshrc",
        f"{COMMAND} completion fish > ~/.config/fish/completions/understudy.fish",
    )
    parser.add_argument("shell", choices=SHELLS)
    shell = parser.parse_args(argv).shell
    flags = {name: " ".join(sorted(_flags_of(command))) for name, command in commands.items()}
    flags["completion"] = " ".join(SHELLS)
    first = [*commands, *OWN, *settings]
    if shell == "fish":
        flags = {f"__fish_seen_subcommand_from {name}": words for name, words in flags.items()}
        flags[f"not __fish_seen_subcommand_from {' '.join(commands)}"] = " ".join(first)
        print(
            "\n".join(
                f"complete -c understudy -n '{case}' -a '{words}'" for case, words in flags.items()
            )
        )
        return 0
    flags["*"] = " ".join(word for word in first if word.startswith("-"))
    lines = "\n".join(f'    {name}) words="{words}" ;;' for name, words in flags.items())
    zsh = (
        "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"
        if shell == "zsh"
        else ""
    )
    print(zsh + BASH % (lines, " ".join(first)), end="")
    return 0


def _flags_of(command: Callable[[Sequence[str]], int]) -> set[str]:
    text = io.StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        command(["--help"])
    return {*_FLAG.findall(text.getvalue())}
