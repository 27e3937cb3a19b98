"""`understudy script from-recording FILE`: turns a recording into an editable script.

See docs/scripts.md.
"""

import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import yaml

from app.extensions.recording.conversation import Json
from app.extensions.recording.exchange import Exchange
from app.extensions.recording.exchange_rules import ExchangeError, ToolSchemas
from app.extensions.recording.lines import recorded
from app.extensions.recording.rules_of_exchanges import convert_exchange
from config import ConfigError
from config.declaration import COMMAND
from config.flags import FlagParser

DESCRIPTION = f"""\
Create a script from a recording ({COMMAND} record --proxy): one rule for each chat, completion and
embedding, which matches the last message of the user and the result of a tool. Edit it: widen its
conditions, and turn its replies into templates.
"""
MAX_SCRIPT_BYTES = 2 << 20
"""Largest script that a server reads, in bytes."""


def run(argv: Sequence[str]) -> int:
    """Runs the command, whose second word comes first; returns the exit status.

    Raises:
        ConfigError: the recording cannot be read, or the script cannot be written.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s")
    flags = FlagParser(
        prog=f"{COMMAND} script from-recording", description=DESCRIPTION, allow_abbrev=False
    )
    flags.examples = (f"{COMMAND} script from-recording session.jsonl --out replies.yaml",)
    flags.add_argument("file", metavar="FILE", help="the recording")
    flags.add_argument(
        "--out", type=Path, metavar="FILE", help="a new file for the script [standard output]"
    )
    options = flags.parse_args(argv[1:])
    document = script_of(recorded(options.file))
    if not document["rules"]:
        raise ConfigError("the recording contains no exchanges that a script can replay")
    write_script(document, options.out, "# From a recording")
    return 0


def write_script(document: Json, out: Path | None, title: str) -> None:
    """Writes a script to a new file, or to standard output without one.

    Raises:
        ConfigError: the file exists, or cannot be written.
    """
    text = f"{title}; edit it at will (docs/scripts.md).\n"
    text += yaml.safe_dump(document, allow_unicode=True, sort_keys=False, width=110)
    if len(text.encode()) > MAX_SCRIPT_BYTES:
        print(
            f"WARNING: more than the {MAX_SCRIPT_BYTES >> 20} MiB that a script may have",
            file=sys.stderr,
        )
    if out is None:
        print(text, end="")
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror or error}") from None


def script_of(exchanges: Iterable[tuple[int, Exchange]]) -> Json:
    """Builds a script from exchanges and their line numbers.

    Rules with equal conditions answer once, in order. Stderr names what is left out, and counts it.
    """
    rules: list[Json] = []
    tools = ToolSchemas()
    losses = 0
    for number, exchange in exchanges:
        request = exchange.request
        place = f"line {number}"
        try:
            converted = convert_exchange(exchange, place)
        except ExchangeError as error:
            line = f"{place}: left out: {request.method} {request.target}: {error}"
            print(line, file=sys.stderr)
            losses += 1
            continue
        for loss in converted.losses:
            print(f"{place}: {loss} left out", file=sys.stderr)
        for statistic in converted.ignored:
            print(f"{place}: ignored: {statistic}", file=sys.stderr)
        losses += len(converted.losses)
        tools.add(converted.tools)
        rules += converted.rules
    print(f"converted rules: {len(rules)}; not carried over: {losses}", file=sys.stderr)
    _drop_common_model(rules)
    distinguish(rules)
    script: Json = {}
    if tools.common():
        script["tools"] = tools.common()
    script["rules"] = rules
    return script


def _drop_common_model(rules: Sequence[Json]) -> None:
    """Removes the condition on the model if all rules have the same."""
    if len({rule["when"].get("model") for rule in rules}) == 1:
        for rule in rules:
            rule["when"].pop("model", None)


def distinguish(rules: Sequence[Json]) -> None:
    """Limits all but the last of rules with equal conditions, so that they answer one by one."""
    keys: set[bytes] = set()
    for rule in reversed(rules):
        key = msgspec.json.encode(rule["when"])
        if key in keys:
            rule["times"] = 1
        keys.add(key)
