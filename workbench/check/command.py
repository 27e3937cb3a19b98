"""`understudy check`: reads command lines of vLLM, and prints what is wrong with them."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from config.declaration import COMMAND, ConfigError, UsageError
from config.files import open_file, read_text
from config.flags import FlagParser, as_command, size_of, whole_number
from config.printable import trusted_stream
from workbench.check.checker import Checker, Hardware
from workbench.check.checkout import COMMAND_LINE
from workbench.check.content import FileContent
from workbench.check.findings import Finding, Place
from workbench.check.output import FORMATS, TextOptions, render
from workbench.check.rules import RULES
from workbench.check.rules import finding as new_finding
from workbench.check.shell_commands import ShellReader
from workbench.check.sources import (
    MAX_DOCUMENT_BYTES,
    MAX_LINES,
    CommandLine,
    Word,
    names_command,
    names_server,
)
from workbench.check.text import Text

if TYPE_CHECKING:
    from workbench.check.documents import Value

DESCRIPTION = """\
Check command lines of vLLM, and the dashboards, rules and autoscalers that watch it, without a GPU
and without the internet (docs/check.md).
Exit status: 0 without errors, 1 with errors (with --strict also with warnings), 2 if a file cannot
be read.
"""
STANDARD_INPUT = "<stdin>"
RECORDING_SUFFIX = ".jsonl"
MAX_SKIPPED_BYTES = 8 << 20
"""Bytes of a skipped file that are searched for vLLM."""
SAID_ONCE = frozenset(("M305",))
SAID_ONCE_PER_FILE = frozenset(("F501", "F502"))
_IGNORED = re.compile(r"#\s*understudy:\s*ignore(?:=(?P<codes>[\w,]+))?")


class InputFiles(NamedTuple):
    """The contents of all files, recordings, and the texts of files by name."""

    content: FileContent
    texts: dict[str, str]
    recordings: list[str]


@as_command()
def run(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    words, command_line = split_command(argv)
    arguments = _parser().parse_args(words)
    try:
        sources = _read(arguments.files, command_line, skips_others=arguments.skip_others)
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
    findings = list(_findings(sources, checker, arguments))
    selected = list(_selected(findings, sources.texts, arguments))
    options = TextOptions(
        shows_changes=arguments.notes,
        is_quiet=arguments.quiet,
        remarks=checker.remarks(),
    )
    text = render(selected, sources.texts, arguments.format, options)
    if text or not arguments.quiet:
        # The lines of this format are commands of a CI, with the texts of strangers escaped.
        stream = trusted_stream(sys.stdout) if arguments.format == "github" else sys.stdout
        print(text, file=stream)
    return int(any(_fails(finding, arguments) for finding in selected))


def _findings(
    sources: InputFiles, checker: Checker, arguments: argparse.Namespace
) -> Iterator[Finding]:
    """Yields the findings of all files."""
    yield from sources.content.notes
    for line in sources.content.lines:
        yield from checker.check(line)
    watched = list(_watchers(sources.content.watchers, checker, arguments.against))
    yield from watched
    if arguments.upgrade_to:
        from workbench.check.upgrade import named_metrics

        places = {(finding.file, finding.line) for finding in watched}
        version, upgrade_to, _ = checker.watched_versions()
        for finding in named_metrics(sources.texts, version, upgrade_to):
            if (finding.file, finding.line) not in places:
                yield finding
    yield from _recordings(sources.recordings, arguments)


def _fails(finding: Finding, arguments: argparse.Namespace) -> bool:
    """Returns whether a finding makes the exit status 1."""
    return finding.severity == "error" or (arguments.strict and finding.severity == "warning")


def read_lines_of(files: Sequence[str], words: Sequence[str]) -> list[CommandLine]:
    """Returns the command lines of files, or the one of `words`; for other commands.

    Raises:
        UsageError: A file cannot be read, or there is no command line of `vllm serve`.
        ConfigError: A file does not have the format of its name.
    """
    try:
        lines = _read(files, words).content.lines
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from None
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not lines:
        raise UsageError(f"{', '.join(files)}: no command line of `vllm serve` was found")
    return lines


def read_inputs(files: Sequence[str]) -> InputFiles:
    """Returns the contents of files; for other commands. Each is read once: it can be a pipe.

    Raises:
        OSError: A file cannot be read.
        UsageError: No file is of vLLM, or one is too large.
        ConfigError: A file does not have the format of its name.
    """
    if not files:
        return InputFiles(FileContent(), {}, [])
    return _read(files, ())


def upgrade_findings(sources: InputFiles, old: str, new: str) -> list[Finding]:
    """Returns the effects of an upgrade on files, without what the old version has, too.

    Raises:
        UsageError: The new version is not known.
    """
    known: set[tuple[object, ...]] = set()
    findings: list[Finding] = []
    for upgrade_to in ("", new):
        words = ["--vllm-version", old, "--upgrade-to", upgrade_to]
        arguments = _parser().parse_args(words)
        checker = Checker(old, upgrade_to, Hardware())
        for finding in _selected(_findings(sources, checker, arguments), sources.texts, arguments):
            key = _key_of(finding)
            if not upgrade_to:
                known.add(key)
            elif key not in known:
                findings.append(finding)
    return findings


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the words before and after the first `--`; also for other commands."""
    words = list(argv)
    if "--" not in words:
        return words, []
    index = words.index("--")
    return words[:index], words[index + 1 :]


def _read(files: Sequence[str], words: Sequence[str], *, skips_others: bool = False) -> InputFiles:
    """Reads the command lines of files and of `words`; of standard input without either.

    `skips_others`: files that are not of vLLM are skipped.
    """
    sources = InputFiles(FileContent(), {}, [])
    if words:
        text = shlex.join(words)
        sources.texts[COMMAND_LINE] = text
        sources.content.lines += _lines_of(words)
    for file in files or ([] if words else ["-"]):
        try:
            _read_file(file, sources)
        except (ConfigError, UsageError, OSError) as error:
            if not skips_others:
                raise
            sources.content.notes += _skipped(file, error)
    if len(sources.content.lines) > MAX_LINES:
        raise UsageError(f"there are more than {MAX_LINES} command lines")
    content = sources.content
    is_empty = not (content.lines or content.watchers or content.notes or sources.recordings)
    if is_empty and not skips_others:
        names = ", ".join(sources.texts)
        raise UsageError(f"{names}: no command line of `vllm serve` was found")
    return sources


def _read_file(name: str, sources: InputFiles) -> None:
    """Adds the content of a file, or of standard input for `-`.

    Raises:
        UsageError: The file is too large.
        ConfigError: The file does not have the format of its name.
    """
    from workbench.check.files import read_file  # imports YAML

    if name.endswith(RECORDING_SUFFIX):
        from workbench.check.client_upgrade import is_recording  # imports the server

        if is_recording(name):
            sources.texts[name] = ""
            sources.recordings.append(name)
            return
    source = Text(STANDARD_INPUT if name == "-" else name, _text_of(name))
    sources.texts[source.file] = source.text
    content = read_file(source, is_named=name != "-")
    is_empty = not (content.lines or content.watchers or content.notes)
    is_alone = not sources.content.lines and not sources.content.watchers
    if is_empty and not is_alone and names_command(source.text):
        message = "this file names vLLM's server, and no command line was found in it"
        content.notes.append(new_finding("F503", Place(source.file), message))
    sources.content.add(content)


def _skipped(name: str, error: Exception) -> Iterator[Finding]:
    """Yields a note about a file that cannot be read, if it names vLLM's server."""
    text = ""
    if name != "-":
        with suppress(OSError), open_file(name, accepts_pipes=False) as file:
            text = file.read(MAX_SKIPPED_BYTES).decode("utf-8", "replace")
    if names_server(text):
        reason = error.strerror if isinstance(error, OSError) else str(error)
        message = f"this file names vLLM, and is not read: {reason}"
        yield new_finding("F503", Place(name), message)


def _text_of(name: str) -> str:
    """Reads a file, or standard input for `-`.

    Raises:
        UsageError: The text is not UTF-8, or standard input is too large.
    """
    try:
        if name != "-":
            return read_text(name, MAX_DOCUMENT_BYTES)
        text = sys.stdin.read(MAX_DOCUMENT_BYTES + 1)
    except UnicodeDecodeError as error:
        shown = STANDARD_INPUT if name == "-" else name
        raise UsageError(f"{shown} is not a text in UTF-8: {error.reason}") from None
    if len(text) > MAX_DOCUMENT_BYTES:
        raise UsageError(f"{STANDARD_INPUT} is larger than {MAX_DOCUMENT_BYTES >> 10} KiB")
    return text


def _watchers(documents: Sequence[Value], checker: Checker, url: str) -> Iterator[Finding]:
    """Yields the findings of dashboards, rules and autoscalers; `url` may be empty.

    Raises:
        UsageError: There is nothing to try on the server, or it cannot be read.
    """
    live = None
    if url:
        from workbench.check.watch.live import read_metrics  # imports gevent

        if not documents:
            raise UsageError("--against needs dashboards, rules, or autoscalers")
        try:
            live = read_metrics(url)
        except ConfigError as error:
            raise UsageError(f"--against: {error}") from None
    if not documents:
        return
    from workbench.check.watch.watchers import check_watchers

    version, upgrade_to, note = checker.watched_versions()
    if note:
        yield new_finding("F502", documents[0].place, note)
    yield from check_watchers(documents, version=version, upgrade_to=upgrade_to, live=live)


def _recordings(paths: Sequence[str], arguments: argparse.Namespace) -> Iterator[Finding]:
    """Yields what the upgrade changes for recorded clients.

    Raises:
        UsageError: There is no upgrade, or the file cannot be read.
    """
    for path in paths:
        if not arguments.upgrade_to:
            raise UsageError(f"{path} is the recording of a client; compare it with --upgrade-to")
        from workbench.check.client_upgrade import compare_answers

        try:
            yield from compare_answers(path, arguments.vllm_version, arguments.upgrade_to)
        except ConfigError as error:
            raise UsageError(str(error)) from None


def _lines_of(texts: Sequence[str]) -> list[CommandLine]:
    """Returns the command lines of words that a shell has read already."""
    words = []
    column = 1
    for text in texts:
        words.append(Word(text, Place(COMMAND_LINE, 1, column), is_quoted=True))
        column += len(shlex.quote(text)) + 1
    return ShellReader().read_command(words) or [CommandLine(words[0].place, words)]


def _selected(
    findings: Iterable[Finding], texts: dict[str, str], arguments: argparse.Namespace
) -> Iterator[Finding]:
    """Yields the findings that flags and comments let through, by file and line."""
    order = {name: number for number, name in enumerate(texts)}
    lines = {name: text.splitlines() for name, text in texts.items()}
    seen: set[tuple[object, ...]] = set()
    for finding in sorted(
        findings,
        key=lambda finding: (order.get(finding.file, len(order)), finding.line, finding.column),
    ):
        if arguments.select and not finding.code.startswith(tuple(arguments.select)):
            continue
        if arguments.ignore and finding.code.startswith(tuple(arguments.ignore)):
            continue
        if arguments.quiet and not _fails(finding, arguments):
            continue
        key = _key_of(finding)
        if key not in seen and not _is_ignored(finding, lines.get(finding.file, [])):
            seen.add(key)
            yield finding


def _key_of(finding: Finding) -> tuple[object, ...]:
    """Returns a key that is equal for findings that repeat each other."""
    if finding.code in SAID_ONCE:
        return finding.code, finding.message
    if finding.code in SAID_ONCE_PER_FILE:
        return finding.code, finding.file, finding.message
    return finding.code, finding.file, finding.line, finding.column, finding.message


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
        if not any(rule.startswith(code) for rule in RULES):
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
    parser.examples = (
        f"{COMMAND} check -- vllm serve Qwen/Qwen3-8B --max-model-len 32768",
        f"{COMMAND} check --device l40s deployment.yaml",
    )
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="script, Dockerfile, YAML, JSON, unit, recording")
    add("--vllm-version", default="", metavar="VERSION", help="such as 0.11; default: the image's")
    add("--upgrade-to", default="", metavar="VERSION", help="also report what this version changes")
    add("--device", default="", help="such as h100, l40s, or rtx4090")
    add("--device-memory", type=size_of, metavar="SIZE", help="memory of a device, such as 24GiB")
    add("--gpus", type=whole_number(1), metavar="N", help="number of devices")
    add("--model-config", default="", metavar="PATH", help="config.json of the model")
    add("--against", default="", metavar="URL", help="try queries on this server's metrics")
    add("--format", choices=FORMATS, default="text")
    add("--select", type=_codes, default=[], metavar="CODES", help="report only these, as O1,M301")
    add("--ignore", type=_codes, default=[], metavar="CODES", help="do not report these")
    add("--skip-others", action="store_true", help="skip files without a command line of vLLM")
    add("--notes", action="store_true", help="list the changes of behavior of an upgrade, too")
    add("--quiet", action="store_true", help="print errors only (with --strict also warnings)")
    add("--strict", action="store_true", help="exit with 1 for warnings, too")
    return parser
