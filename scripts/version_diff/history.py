"""Writes vllm_facts/history.json: when names of vLLM came, changed, and went.

The architectures of models are in vllm_facts/registry.json.

    $ python -m scripts.version_diff.history vllm-0.34.0-cp38-abi3-manylinux_2_28_x86_64.whl
    $ python -m scripts.version_diff.history --all [FOLDER]

The first command adds a release to the present file: a number, which is downloaded, or the path of
a wheel, a source distribution, or a folder with the name of the release. The second one reads all
releases again, in order: those of the file. They are downloaded one after the other, about 2 GB in
total, unless the folder has a folder with the name of the release and its package `vllm`.

`add` reads the facts of a release into the tables, so both commands write the same file. Start
reading there.
"""

import argparse
import ast
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from scripts.version_diff.architectures import architecture_facts, suffix_facts
from scripts.version_diff.download import DownloadError, download
from scripts.version_diff.environment import variable_facts
from scripts.version_diff.fact import UNKNOWN, Fact, Kind, by_key
from scripts.version_diff.fields import event_facts, field_facts
from scripts.version_diff.metrics import metric_facts
from scripts.version_diff.options import option_facts
from scripts.version_diff.package import Package, read_package
from scripts.version_diff.reading import read_facts
from scripts.version_diff.registries import parser_facts, quantization_facts
from scripts.version_diff.replacements import METRICS, replacements_in
from scripts.version_diff.routes import route_facts
from vllm_facts.history import NOTHING, History, Lifetime, read_history, version_number
from vllm_facts.names import FILE, Periods, Schema, Values, release_numbers
from vllm_facts.registry import FILE as REGISTRY_FILE

READERS = (
    option_facts,
    variable_facts,
    metric_facts,
    route_facts,
    parser_facts,
    quantization_facts,
    architecture_facts,
    suffix_facts,
    field_facts,
    event_facts,
)
SOURCE = "distributions of vLLM on PyPI (Apache-2.0), read by scripts/version_diff/history.py"
TABLES: dict[str, Kind] = {
    "options": "option",
    "keys": "JSON key",
    "variables": "environment variable",
    "metrics": "metric",
    "routes": "route",
    "tool_parsers": "tool parser",
    "reasoning_parsers": "reasoning parser",
    "quantizations": "quantization",
    "architectures": "architecture",
    "suffixes": "suffix",
}
MODEL_TABLES = ("architectures", "suffixes")
"""Tables of names that users do not write, so that none has a replacement."""
SCHEMAS: dict[str, Kind] = {"schemas": "field", "events": "KV event"}
CHOICES: dict[Kind, str] = {"option": "choices", "JSON key": "shorthands"}
"""Kind of a name -> attribute with its values."""
SWITCH_ACTIONS = ("store_true", "store_false", "BooleanOptionalAction")
LIST_TYPES = ("list[", "set[", "tuple[")


def main(arguments: Sequence[str], file: Path = FILE) -> int:
    """Writes the file; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="python -m scripts.version_diff.history",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("release", nargs="?", help="release, distribution or folder to add")
    parser.add_argument("--all", action="store_true", help="read all releases again")
    options = parser.parse_args(arguments)
    if options.release is None and not options.all:
        parser.error("name a release, or use --all")
    present = _read_all(file)
    try:
        if options.all:
            history = _all_again(present, options.release)
        else:
            history = present
            source = Path(options.release)
            add_release(history, release_of(options.release), source if source.exists() else None)
    except (DownloadError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    file.write_bytes(text_of(history))
    registry_file = file.with_name(REGISTRY_FILE.name)
    registry_file.write_bytes(text_of(history, MODEL_TABLES))
    for written in (file, registry_file):
        print(f"{written}: {written.stat().st_size} bytes")
    return 0


def _read_all(file: Path) -> History:
    """Returns the history with the tables of models, which servers read from a second file."""
    history = read_history(file)
    registry_file = file.with_name(REGISTRY_FILE.name)
    if registry_file.exists():
        models = msgspec.json.decode(registry_file.read_bytes(), type=History)
        history.architectures = models.architectures
        history.suffixes = models.suffixes
    return history


def _all_again(present: History, folder: str | None) -> History:
    history = History()
    for releases in present.releases.values():
        for release in releases:
            source = None
            if folder is not None and Path(folder, release).exists():
                source = Path(folder, release)
            add_release(history, release, source)
    return history


def release_of(source: str) -> str:
    """Returns the release of a distribution, a folder or a number, such as 0.34.0.

    Raises:
        ValueError: The name has no release.
    """
    match = re.match(r"(?:vllm-|v)?(\d+\.\d+(?:\.(?:post)?\d+)*)", Path(source).name)
    if match is None:
        raise ValueError(f"{source} does not begin with a release, as in vllm-0.34.0.tar.gz")
    return match[1]


def add_release(history: History, release: str, source: Path | None) -> None:
    """Adds a release from a distribution or a folder, or downloads it.

    Raises:
        DownloadError: There is no distribution.
        OSError: The source has no package `vllm`.
        ValueError: The release is not newer than the newest one of the history.
    """
    print(f"Reading {release} ...", flush=True)
    if source is not None:
        package = read_package(source)
    else:
        with tempfile.TemporaryDirectory(prefix="version-history-") as downloads:
            package = read_package(download(release, Path(downloads)))
    add_package(history, release, package)


def add_package(history: History, release: str, package: Package) -> None:
    """Adds a release that has been read.

    Raises:
        ValueError: The release is not newer than the newest one of the history.
    """
    add(history, release, read_facts(package, READERS), replacements_in(package))


def add(
    history: History, release: str, facts: Iterable[Fact], replacements: Mapping[str, str]
) -> None:
    """Adds the facts of a release.

    Raises:
        ValueError: The release is not newer than the newest one of the history.
    """
    minor = ".".join(map(str, version_number(release)))
    known_releases = [each for releases in history.releases.values() for each in releases]
    if known_releases and release_numbers(release) <= release_numbers(known_releases[-1]):
        raise ValueError(
            f"{release} is not newer than {known_releases[-1]}: add it to the releases in "
            f"{FILE.name}, and use --all"
        )
    version = release
    if not history.releases:
        version = ""
    elif minor not in history.releases:
        version = minor
    history.source = SOURCE
    history.releases.setdefault(minor, []).append(release)
    known_facts = [fact for fact in by_key(facts).values() if _has_known_name(fact)]
    for table, kind in TABLES.items():
        present = {fact.name: fact for fact in known_facts if fact.kind == kind}
        _add_names(getattr(history, table), present, version)
        if table not in MODEL_TABLES:
            _replace_names(getattr(history, table), replacements)
    for table, kind in SCHEMAS.items():
        present_fields: dict[str, dict[str, Fact]] = {}
        for fact in known_facts:
            if fact.kind == kind:
                present_fields.setdefault(fact.owner, {})[fact.name] = fact
        _add_schemas(getattr(history, table), present_fields, version)


def _has_known_name(fact: Fact) -> bool:
    """Returns whether no part of a name is known to vLLM's code only, as in `GET unknown: ...`."""
    return fact.name != UNKNOWN and f"{UNKNOWN}: " not in fact.name


def _add_names(table: dict[str, Lifetime], present: Mapping[str, Fact], version: str) -> None:
    for name in {*table, *present}:
        if name not in table:
            table[name] = Lifetime(periods=[])
        lifetime = table[name]
        _spell_out(lifetime.choices, lifetime.periods)
        fact = present.get(name)
        _extend(lifetime.periods, fact is not None, version)
        choices: set[str] = set()
        if fact is not None:
            choices = _choices(fact)
            _add_attributes(lifetime, fact, version)
        for choice in {*lifetime.choices, *choices}:
            _extend(lifetime.choices.setdefault(choice, []), choice in choices, version)
        lifetime.choices = _abbreviated(lifetime.choices, lifetime.periods)
    for name in sorted(table):
        table[name] = table.pop(name)


def _choices(fact: Fact) -> set[str]:
    text = fact.attributes.get(CHOICES.get(fact.kind, ""), "")
    if not text or UNKNOWN in text:
        return set()
    return set(text.split(", "))


def _add_attributes(lifetime: Lifetime, fact: Fact, version: str) -> None:
    if fact.kind == "metric":
        lifetime.kind = fact.attributes.get("type", lifetime.kind).partition(" or ")[0]
        lifetime.module = fact.area
        labels = fact.attributes.get("labels", "").replace(", ", " ")
        _add_text(lifetime.labels, labels, version)
        if lifetime.kind == "histogram":
            buckets = fact.attributes.get("buckets", "").replace(", ", " ")
            _add_text(lifetime.buckets, buckets, version)
        _add_change(lifetime.conditions, fact.attributes.get("condition", ""), version)
    elif fact.kind in ("architecture", "suffix"):
        _add_text(lifetime.does, fact.attributes["does"], version)
    elif fact.kind == "route":
        _add_change(lifetime.parameters, fact.attributes.get("parameters", ""), version)
        _add_change(lifetime.keys, fact.attributes.get("keys", ""), version)
    elif fact.kind == "option":
        default = _shown(fact.attributes.get("default", UNKNOWN))
        if not lifetime.defaults or not {default, lifetime.defaults[-1][1]} <= NOTHING:
            _add_text(lifetime.defaults, default, version)
        _add_text(lifetime.takes, _takes(fact.attributes), version)
        if "type" in fact.attributes:
            _add_text(lifetime.types, fact.attributes["type"], version)


def _takes(attributes: Mapping[str, str]) -> str:
    """Returns what follows an option, as in `Lifetime.takes`."""
    action = attributes.get("action", "")
    nargs = attributes.get("nargs", "").strip("'")
    option_type = attributes.get("type", "")
    if action in SWITCH_ACTIONS:
        return "nothing"
    if nargs == "?":
        return "maybe"
    if nargs in ("+", "*"):
        return "some"
    if nargs or action:
        return "one"
    members = set(option_type.removeprefix("SkipValidation[").rstrip("]").split(" | ")) - {"None"}
    if members == {"bool"}:
        return "nothing"
    if "bool" in members:
        return "maybe"
    if any(member.startswith(LIST_TYPES) for member in option_type.split(" | ")):
        return "some"
    return "one"


def _add_text(values: Values, text: str, version: str) -> None:
    if UNKNOWN not in text and (not values or values[-1][1] != text):
        values.append((version, text))


def _add_change(values: Values, text: str, version: str) -> None:
    """Adds a text that is empty in most cases; the first one only if it is not."""
    if text or values:
        _add_text(values, text, version)


def _replace_names(table: dict[str, Lifetime], replacements: Mapping[str, str]) -> None:
    for name, lifetime in table.items():
        new_name = METRICS.get(name) or replacements.get(name)
        if new_name is not None:
            lifetime.replacement = new_name
        elif lifetime.gone_in and not lifetime.replacement:
            lifetime.replacement = UNKNOWN
        elif not lifetime.gone_in and lifetime.replacement == UNKNOWN:
            lifetime.replacement = ""


def _add_schemas(
    table: dict[str, Schema], present: Mapping[str, Mapping[str, Fact]], version: str
) -> None:
    for name in {*table, *present}:
        if name not in table:
            table[name] = Schema(periods=[])
        schema = table[name]
        _spell_out(schema.fields, schema.periods)
        for field, periods in schema.required.items():
            schema.required[field] = periods or list(schema.fields[field])
        facts = present.get(name, {})
        _extend(schema.periods, name in present, version)
        for field in {*schema.fields, *facts}:
            _extend(schema.fields.setdefault(field, []), field in facts, version)
            is_required = field in facts and facts[field].attributes["default"] == "required"
            if is_required or field in schema.required:
                _extend(schema.required.setdefault(field, []), is_required, version)
        schema.required = {
            field: [] if periods == schema.fields[field] else periods
            for field, periods in sorted(schema.required.items())
        }
        schema.fields = _abbreviated(schema.fields, schema.periods)
    for name in sorted(table):
        table[name] = table.pop(name)


def _extend(periods: Periods, is_present: bool, version: str) -> None:
    """Adds a version, with the name or without it, to the periods of the versions before it."""
    is_open = bool(periods) and not periods[-1][1]
    if is_present and not is_open:
        periods.append((version, ""))
    elif is_open and not is_present:
        periods[-1] = (periods[-1][0], version)


def _spell_out(inner: dict[str, Periods], outer: Periods) -> None:
    for name, periods in inner.items():
        inner[name] = periods or list(outer)


def _abbreviated(inner: dict[str, Periods], outer: Periods) -> dict[str, Periods]:
    return {name: [] if periods == outer else periods for name, periods in sorted(inner.items())}


def _shown(text: str) -> str:
    """Returns how a command line writes a value of Python; `unknown` for other texts."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return UNKNOWN
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return str(value) or "empty"


def text_of(history: History, names: Sequence[str] = ()) -> bytes:
    """Returns JSON with one line for each name, so that a new version changes few lines.

    It has the tables with certain `names`, or all but those of models.
    """
    tables = msgspec.to_builtins(history)
    lines = []
    for table, content in tables.items():
        if table not in names if names else table in MODEL_TABLES:
            continue
        encoded = msgspec.json.encode(content).decode()
        if table not in ("source", "releases"):
            encoded = _table_text(content)
        lines.append(f'"{table}":{encoded}')
    return ("{" + ",\n".join(lines) + "}\n").encode()


def _table_text(table: Mapping[str, Mapping[str, object]]) -> str:
    """Returns a line for each name; those of a schema have one for each field, too."""
    lines = []
    for name, content in table.items():
        text = msgspec.json.encode(content).decode()
        if "fields" in content:
            text = re.sub(r'([{,])("\w+":\[)', r"\1\n \2", text)
        lines.append(f"{msgspec.json.encode(name).decode()}:{text}")
    return "{\n" + ",\n".join(lines) + "}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
