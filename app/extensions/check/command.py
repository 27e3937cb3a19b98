"""`understudy check`: reads command lines of vLLM, and prints what is wrong with them."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from app.extensions.check.checker import Checker, Hardware
from app.extensions.check.findings import Finding, Place
from app.extensions.check.output import FORMATS, render
from app.extensions.check.rules import RULES
from app.extensions.check.shell_commands import ShellReader, arguments_of
from app.extensions.check.shell_words import Text
from app.extensions.check.sources import MAX_BYTES, MAX_LINES, CommandLine, Word
from config.declaration import COMMAND, ConfigError, UsageError
from config.files import read_text
from config.flags import FlagParser, as_command, size_of, whole_number

DESCRIPTION = """\
Check command lines of vLLM without a GPU and without the internet (docs/check.md).
Exit status: 0 without errors, 1 with errors (with --strict also with warnings), 2 if a file cannot
be read.
"""
COMMAND_LINE = "<command line>"
STANDARD_INPUT = "<stdin>"
_DOCUMENT = re.compile(
    r"^(?:apiVersion|kind|services|servingEngineSpec|modelArtifacts):", re.MULTILINE
)
"""A line that only the files of clusters have."""
_IGNORED = re.compile(r"#\s*understudy:\s*ignore(?:=(?P<codes>[\w,]+))?")


class Sources(NamedTuple):
    """Command lines, and the texts of their files by name."""

    lines: list[CommandLine]
    texts: dict[str, str]


@as_command()
def run(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    words, rest = _split(argv)
    arguments = _parser().parse_args(words)
    try:
        sources = _read(arguments.files, rest, skips_others=arguments.skip_others)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from None
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None
    hardware = Hardware(
        device=arguments.device,
        memory_bytes=arguments.device_memory,
        count=arguments.gpus,
        model_config=arguments.model_config,
    )
    checker = Checker(arguments.vllm_version, arguments.upgrade_to, hardware)
    findings: list[Finding] = []
    for line in sources.lines:
        findings += checker.check(line)
    kept = list(_kept(findings, sources.texts, arguments))
    text = render(kept, sources.texts, arguments.format)
    print(text.encode("utf-8", "replace").decode())  # half of a surrogate pair cannot be printed
    severities = {finding.severity for finding in kept}
    return int("error" in severities or (arguments.strict and "warning" in severities))


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the words before and after the first `--`."""
    words = list(argv)
    if "--" not in words:
        return words, []
    index = words.index("--")
    return words[:index], words[index + 1 :]


def _read(files: Sequence[str], words: Sequence[str], *, skips_others: bool = False) -> Sources:
    """Reads the command lines of files and of `words`; of standard input without either.

    `skips_others`: files without a command line of vLLM are skipped.
    """
    sources = Sources([], {})
    if words:
        text = shlex.join(words)
        sources.texts[COMMAND_LINE] = text
        sources.lines.append(_line_of(words))
    for name in files or ([] if words else ["-"]):
        if name == "-":
            text = sys.stdin.read(MAX_BYTES + 1)
            if len(text) > MAX_BYTES:
                raise UsageError(f"{STANDARD_INPUT} is larger than {MAX_BYTES >> 10} KiB")
            sources.texts[STANDARD_INPUT] = text
            sources.lines.extend(_lines_of_input(text))
            continue
        from app.extensions.check.files import read_lines  # imports YAML

        text = read_text(name, MAX_BYTES)
        sources.texts[name] = text
        try:
            sources.lines.extend(read_lines(name, text))
        except ConfigError:
            if not skips_others:
                raise
    if len(sources.lines) > MAX_LINES:
        raise UsageError(f"there are more than {MAX_LINES} command lines")
    if not sources.lines and not skips_others:
        names = ", ".join(sources.texts)
        raise UsageError(f"{names}: no command line of `vllm serve` was found")
    return sources


def _lines_of_input(text: str) -> Iterable[CommandLine]:
    """Returns the command lines of a script, or of the documents of a cluster."""
    if _DOCUMENT.search(text):
        from app.extensions.check.files import read_yaml_lines  # imports YAML

        return read_yaml_lines(STANDARD_INPUT, text)
    return ShellReader().read(Text(STANDARD_INPUT, text))


def _line_of(texts: Sequence[str]) -> CommandLine:
    """Returns the command line of words that a shell has read already."""
    words = []
    column = 1
    for text in texts:
        words.append(Word(text, Place(COMMAND_LINE, 1, column), is_quoted=True))
        column += len(shlex.quote(text)) + 1
    line = ShellReader().read_command(words)
    if line is None:
        line = arguments_of(words) or CommandLine(words[0].place, words)
    return line


def _kept(
    findings: Iterable[Finding], texts: dict[str, str], arguments: argparse.Namespace
) -> Iterator[Finding]:
    """Yields the findings that flags and comments let through, by file and line."""
    order = {name: number for number, name in enumerate(texts)}
    lines = {name: text.splitlines() for name, text in texts.items()}
    for finding in sorted(
        findings, key=lambda each: (order.get(each.file, len(order)), each.line, each.column)
    ):
        if arguments.select and not finding.code.startswith(tuple(arguments.select)):
            continue
        if arguments.ignore and finding.code.startswith(tuple(arguments.ignore)):
            continue
        if not _is_ignored(finding, lines.get(finding.file, [])):
            yield finding


def _is_ignored(finding: Finding, lines: Sequence[str]) -> bool:
    """Returns whether a comment in the line, or alone in the line above, ignores a finding."""
    candidates = list(lines[finding.line - 1 : finding.line])
    above = lines[finding.line - 2 : finding.line - 1] if finding.line > 1 else []
    candidates += [line for line in above if line.lstrip().startswith("#")]
    for line in candidates:
        match = _IGNORED.search(line)
        if match is not None:
            codes = match["codes"]
            if codes is None or finding.code.startswith(tuple(codes.split(","))):
                return True
    return False


def _codes(text: str) -> list[str]:
    codes = [code.strip().upper() for code in text.split(",") if code.strip()]
    for code in codes:
        if not any(known.startswith(code) for known in RULES):
            raise argparse.ArgumentTypeError(f"{code} is the beginning of no code")
    return codes


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(
        f"{COMMAND} check",
        usage=f"{COMMAND} check [flags] [FILE ...] [-- vllm serve MODEL ...]",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="shell script, Dockerfile, YAML, unit; - is stdin")
    add("--vllm-version", default="", metavar="VERSION", help="such as 0.11; default: the image's")
    add("--upgrade-to", default="", metavar="VERSION", help="also report what this version changes")
    add("--device", default="", help="such as h100, l40s, or rtx4090")
    add("--device-memory", type=size_of, metavar="SIZE", help="memory of a device, such as 24GiB")
    add("--gpus", type=whole_number(1), metavar="N", help="number of devices")
    add("--model-config", default="", metavar="PATH", help="config.json of the model")
    add("--format", choices=FORMATS, default="text")
    add("--select", type=_codes, default=[], metavar="CODES", help="report only these, as O1,M301")
    add("--ignore", type=_codes, default=[], metavar="CODES", help="do not report these")
    add("--skip-others", action="store_true", help="skip files without a command line of vLLM")
    add("--strict", action="store_true", help="exit with 1 for warnings, too")
    return parser
