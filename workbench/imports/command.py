"""`understudy script import FILE...`: makes a script of other tools' fixtures.

See docs/import.md.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from app.extensions.recording.exchange_rules import ToolSchemas
from app.extensions.recording.to_script import distinguish, write_script
from config import ConfigError
from config.declaration import COMMAND
from config.flags import FlagParser
from workbench.imports.fixture_file import FixtureFile
from workbench.imports.formats import FORMATS, list_of_formats
from workbench.imports.imported_script import (
    ImportedScript,
    ImportFormatError,
    Json,
)
from workbench.imports.next_command import next_command

DESCRIPTION = f"""\
Create a script from fixtures and logs of other tools: {list_of_formats()}. Standard error lists
what could not be carried over.
"""


def run(argv: Sequence[str]) -> int:
    """Runs the command, whose second word comes first; returns the exit status.

    Raises:
        ConfigError: a file cannot be read or has no known format, or nothing could be imported.
    """
    options = _options(argv[1:])
    rules: list[Json] = []
    tools = ToolSchemas()
    left_out: list[str] = []
    ignored: list[str] = []
    for path in options.files:
        script = ImportedScript()
        try:
            tools.add(_import(path, options.format, script))
        except ImportFormatError as error:
            raise ConfigError(f"{path}: {error}") from None
        rules += script.rules
        left_out += [f"{path}: {line}" for line in script.left_out]
        ignored += [f"{path}: {line}" for line in script.ignored]
    for line in (*ignored, *left_out):
        text = " ".join(line.split())
        print(text.encode(errors="backslashreplace").decode(), file=sys.stderr)
    total = f"imported rules: {len(rules)}; not carried over: {len(left_out)}"
    if ignored:
        total += f"; ignored: {len(ignored)}"
    print(total, file=sys.stderr)
    if not rules:
        raise ConfigError("no rule could be imported")
    distinguish(rules)
    _write(rules, tools.common(), options)
    return 0


def _write(rules: list[Json], tools: Json, options: argparse.Namespace) -> None:
    """Writes the script, and prints the command that serves it.

    Raises:
        ConfigError: the file exists, or cannot be written.
    """
    command = next_command(rules, options.out)
    for rule in rules:
        if not rule["when"]:
            del rule["when"]
    document: Json = {"rules": rules}
    if tools:
        document = {"tools": tools, "rules": rules}
    title = f"# Imported from {', '.join(map(str, options.files))}"
    if options.out is None:
        title = f"# next: {command}\n{title}"  # standard output is the script
    write_script(document, options.out, title)
    if options.out is not None:
        print(f"next: {command}")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = FlagParser(prog=f"{COMMAND} script import", description=DESCRIPTION, allow_abbrev=False)
    flags.examples = (f"{COMMAND} script import fixtures.json --out imported.yaml",)
    flags.add_argument("files", metavar="FILE", nargs="+", type=Path, help="a file with fixtures")
    flags.add_argument(
        "--format", choices=tuple(FORMATS), help="the format of the files [found by their content]"
    )
    flags.add_argument(
        "--out", type=Path, metavar="FILE", help="a new file for the script [standard output]"
    )
    options: argparse.Namespace = flags.parse_args(argv)
    return options


def _import(path: Path, name: str | None, script: ImportedScript) -> Json:
    """Adds the rules of a file to the script, and returns the schemas of its tools."""
    fmt, content = FixtureFile(path).format_and_content(name)
    return fmt.read(content, script) or {}
