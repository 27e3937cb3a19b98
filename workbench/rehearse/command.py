"""`understudy rehearse`: what an upgrade of vLLM breaks, before the cluster is upgraded."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from app.extensions.recording.exchange import Exchange
from app.extensions.recording.lines import recorded
from config.declaration import COMMAND, ConfigError, UsageError
from config.files import open_file
from config.flags import FlagParser, as_command
from config.printable import trusted_stream
from vllm_facts.version import playable_version
from workbench.check.client_upgrade import is_recording
from workbench.check.command import RECORDING_SUFFIX, read_inputs, split_command
from workbench.check.sources import MAX_DOCUMENT_BYTES, CommandLine, names_server
from workbench.fleet.processes import interrupted_by_signals
from workbench.rehearse.client_code import ClientCode, is_code, paths_in, read_code
from workbench.rehearse.deployment import Deployment, lost_options
from workbench.rehearse.files import (
    file_differences,
    later_differences,
    metric_differences,
    unread,
)
from workbench.rehearse.report import FORMATS, render
from workbench.rehearse.runs import Client, Rehearsal, Run
from workbench.rehearse.thoughts import has_thoughts, place_of_thoughts
from workbench.rehearse.verdict import Verdict, downgrade_problem, unseen, verdict_of

DESCRIPTION = """\
Run a client against stand-ins of two versions of vLLM, and report what an upgrade breaks: silent
breaks first (docs/rehearse.md). Without a command and without a recording, only the files are read.
Exit status: 0 if nothing breaks, 1 if something breaks, 2 without an answer.
"""


class Files(NamedTuple):
    """The files of the command line, by their kinds."""

    deployment: Sequence[str]
    """Files that `check` reads."""
    code: Sequence[str]
    """Files of the client's code."""
    recordings: Sequence[str]


@as_command()
def run(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    try:
        return _run(argv)
    except (BrokenPipeError, UsageError):
        raise
    except KeyboardInterrupt:
        raise UsageError("interrupted; nothing was compared") from None
    except ConfigError as error:  # its exit status would mean that something breaks
        raise UsageError(str(error)) from None
    except OSError as error:
        reason = f"{error.filename or 'failed'}: {error.strerror or error}"
        raise UsageError(reason) from None


def _run(argv: Sequence[str]) -> int:
    words, command = split_command(argv)
    arguments = _parser().parse_args(words)
    old = _version(arguments.old, "--from")
    new = _version(arguments.new, "--to")
    files = _sorted(arguments.files)
    for path in arguments.recording:
        if not is_recording(path):
            raise UsageError(f"--recording {path}: not a recording of {COMMAND} record --proxy")
    recordings = [*arguments.recording, *files.recordings]
    if not (command or recordings or arguments.files):
        raise UsageError("rehearse needs files, a recording, or a command after --")
    code = ClientCode({})
    if command or files.code:
        code = read_code([*files.code, *paths_in(command)], os.curdir)
    read = read_inputs(files.deployment)
    of_files = file_differences(read, old, new)
    of_files.extend(metric_differences(code, old, new))
    of_files.extend(later_differences(read, new))
    client = Client(
        command=command,
        recorded=[exchange for path in recordings for _, exchange in recorded(path)],
        base_url_variables=arguments.base_url_variable,
    )
    if command or recordings:
        lines = read.content.lines
        scripts = [os.path.abspath(path) for path in arguments.script]
        with (
            tempfile.TemporaryDirectory(prefix="understudy-rehearse-") as folder,
            interrupted_by_signals(),
        ):
            line = lines[0] if lines else None
            deployment = Deployment(line, folder, _thoughts(code, client.recorded))
            runs = _runs(client, deployment, scripts, versions=(old, new))
        verdict = verdict_of(
            *runs,
            code,
            of_files=of_files,
            notes=[*_notes(deployment, lines), *unread(read)],
            recorded=client.recorded,
        )
        if deployment.lost:
            # First: it may be the cause of the other problem.
            problems = [lost_options(deployment.lost), verdict.problem]
            verdict = verdict._replace(problem="; ".join(filter(None, problems)))
    else:
        verdict = Verdict(
            old=old,
            new=new,
            differences=of_files,
            unseen=unseen(_no_run(old), _no_run(new), code, unread(read)),
            problem=downgrade_problem(old, new),
        )
    text = render(verdict, arguments.format, shows_changes=arguments.notes)
    # The lines of this format are commands of a CI, with the texts of strangers escaped.
    stream = trusted_stream(sys.stdout) if arguments.format == "github" else sys.stdout
    print(text, file=stream)
    return verdict.status


def _version(text: str, flag: str) -> str:
    """Returns the release of a version, such as 0.27.1.

    Raises:
        UsageError: The version cannot be played.
    """
    try:
        return playable_version(text).release
    except ValueError as error:
        raise UsageError(f"{flag} {text}: {error}") from None


def _variable(text: str) -> str:
    """Returns the name of an environment variable."""
    if not text or "=" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a variable")
    return text


def _sorted(files: Sequence[str]) -> Files:
    """Returns the files by kind."""
    recordings = [file for file in files if file.endswith(RECORDING_SUFFIX) and is_recording(file)]
    code = [file for file in files if is_code(file)]
    deployment = [
        file
        for file in files
        if file not in recordings and (file not in code or _starts_server(file))
    ]
    return Files(deployment, code, recordings)


def _starts_server(file: str) -> bool:
    """Returns whether a file of code is a shell script that starts a server of vLLM."""
    if not file.endswith(".sh"):
        return False
    with suppress(OSError), open_file(file, accepts_pipes=False) as script:
        return names_server(script.read(MAX_DOCUMENT_BYTES).decode("utf-8", "replace"))
    return False


def _runs(
    client: Client, deployment: Deployment, scripts: Sequence[str], versions: tuple[str, str]
) -> tuple[Run, Run]:
    """Runs the client against a stand-in of each version, one after the other."""
    rehearsal = Rehearsal(client)
    try:
        # Both start at the same time, which halves the wait.
        servers = []
        for version in versions:
            words = deployment.words(version)
            if scripts:
                words += ["--script", *scripts]
            servers.append(rehearsal.start(version, words, deployment.isolation))
        old_version, new_version = versions
        old_server, new_server = servers
        print(f"--- vLLM {old_version}", file=sys.stderr, flush=True)
        old = rehearsal.run(old_version, old_server)
        print(f"--- vLLM {new_version}", file=sys.stderr, flush=True)
        new = rehearsal.run(new_version, new_server, old)
    finally:
        rehearsal.close()
    return old, new


def _thoughts(code: ClientCode, recorded: Sequence[Exchange]) -> str:
    """Returns what shows that the client knows about thoughts; empty if nothing does."""
    place = place_of_thoughts(code)
    if place is not None:
        return f"{place.file}:{place.line}"
    return "the recording" if has_thoughts(recorded) else ""


def _notes(deployment: Deployment, lines: Sequence[CommandLine]) -> list[str]:
    notes = list(deployment.notes)
    if deployment.lost:
        notes.append(lost_options(deployment.lost))
    if len(lines) > 1:
        place = lines[0].place
        notes.append(
            f"of {len(lines)} command lines of servers, the one in {place.file}:{place.line} is "
            "played"
        )
    return notes


def _no_run(version: str) -> Run:
    return Run(version=version, exchanges=())


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(
        f"{COMMAND} rehearse",
        usage=f"{COMMAND} rehearse --from VERSION --to VERSION [flags] [FILE ...] [-- COMMAND ...]",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.examples = (
        f"{COMMAND} rehearse --from 0.27 --to 0.33 deployment.yaml dashboard.json",
        f"{COMMAND} rehearse --from 0.27 --to 0.33 deployment.yaml -- pytest tests/",
    )
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="deployment, dashboard, scaler, code, recording")
    add("--from", dest="old", required=True, metavar="VERSION", help="version that is in use")
    add("--to", dest="new", required=True, metavar="VERSION", help="version of the upgrade")
    add(
        "--recording",
        action="append",
        default=[],
        metavar="FILE",
        help="send the requests of a recording (record --proxy); may be repeated",
    )
    add(
        "--script",
        action="append",
        default=[],
        metavar="FILE",
        help="replies of both stand-ins; may be repeated",
    )
    add(
        "--base-url-variable",
        type=_variable,
        action="append",
        default=[],
        metavar="NAME",
        help="a further variable for the URL of the server, which ends with /v1; may be repeated",
    )
    add("--format", choices=FORMATS, default="text")
    add("--notes", action="store_true", help="list the changes without a break, too")
    return parser
