"""`understudy script import FILE...`: makes a script of other tools' fixtures.

See docs/import.md.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from app.extensions.recording.exchange_rules import ToolSchemas
from app.extensions.recording.imports import (
    aimock,
    archives,
    cassette,
    litellm,
    mock_llm,
    mockllm,
)
from app.extensions.recording.imports.fixture_format import Format
from app.extensions.recording.imports.imported_script import (
    ImportedScript,
    ImportFormatError,
    Json,
)
from app.extensions.recording.to_script import distinguish, write_script
from config import ConfigError
from config.declaration import COMMAND
from config.files import read_whole
from config.flags import FlagParser
from config.lines import check_json
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from config.yaml_file import LimitedLoader, decode_yaml, oversize

DESCRIPTION = """\
Create a script from fixtures of aimock, mockllm or mock-llm, from VCR cassettes, HTTP Archives, and
recordings of nock and WireMock, or from the mocks of LiteLLM. Standard error lists what could not
be carried over.
"""
JSON_SUFFIXES = (".json", ".har")
MAX_FILE_BYTES = 32 << 20
FORMATS = {
    "aimock": Format(aimock.is_aimock, aimock.import_aimock),
    "mockllm": Format(mockllm.is_mockllm, mockllm.import_mockllm),
    "mock-llm": Format(mock_llm.is_mock_llm, mock_llm.import_mock_llm),
    "vcr": Format(cassette.is_cassette, cassette.import_cassette),
    "litellm": Format(litellm.is_litellm, litellm.import_litellm),
    "har": Format(archives.is_har, archives.import_har),
    "nock": Format(archives.is_nock, archives.import_nock),
    "wiremock": Format(archives.is_wiremock, archives.import_wiremock),
}


class FixtureLoader(LimitedLoader):
    """A loader that also reads bytes as Ruby writes them: `!binary` instead of `!!binary`."""

    def construct_ruby_bytes(self, node: yaml.ScalarNode) -> bytes:
        """Returns bytes that are written in base64."""
        return self.construct_yaml_binary(node)


FixtureLoader.add_constructor("!binary", FixtureLoader.construct_ruby_bytes)


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
    for rule in rules:
        if not rule["when"]:
            del rule["when"]
    document: Json = {"rules": rules}
    if tools.common():
        document = {"tools": tools.common(), "rules": rules}
    write_script(document, options.out, f"# Imported from {', '.join(map(str, options.files))}")
    return 0


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
    document = _document(path)
    if name is None:
        names = [name for name, fmt in FORMATS.items() if fmt.is_format(document)]
        if not names:
            raise ImportFormatError(f"must be one of {', '.join(FORMATS)}")
        name = names[0]
    return FORMATS[name].read(document, script) or {}


def _document(path: Path) -> object:
    """Returns the JSON or YAML of a file."""
    try:
        content = read_whole(path, MAX_FILE_BYTES)
        if path.suffix in JSON_SUFFIXES:
            check_json(content, str(path))
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise ImportFormatError(f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ImportFormatError("is not encoded in UTF-8") from None
    try:
        if path.suffix in JSON_SUFFIXES:
            document = decode_untrusted(text, decoder=python_json)
        else:
            document = decode_yaml(text, FixtureLoader)
    except UntrustedDataError as error:
        first_line = str(error).partition("\n")[0]
        raise ImportFormatError(f"is not valid: {first_line}") from None
    flaw = oversize(document)
    if flaw:
        raise ImportFormatError(flaw)
    return document
