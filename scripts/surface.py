"""Prints the surface of a server as JSON: what users and plugins can see of it.

    $ python -m scripts.surface           # print the surface of this checkout
    $ python -m scripts.surface --write uptime  # store it with the part of one extension
    $ python -m scripts.surface --write   # store it with the parts of all extensions; takes minutes

A restructuring must keep the surface: the settings, the commands, and, for each configuration in
`CONFIGURATIONS`, the routes, the middleware from the outermost to the innermost, the names of the
random streams (renaming one changes every seeded reply) and the metric families. A test compares
the stored surface with that of the checkout, so that each change of the surface is a line of a
diff. `--write` also stores in `extensions.json` what each extension adds to the surface: what is
missing in a checkout from which its folder was deleted. So the comparison is exact where extensions
are missing, too. With names of extensions, `--write` computes their parts only, in seconds, and
keeps the stored parts of the others.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from app.core.application import create_app
from app.core.base.clock.random_streams import Streams
from app.core.built_in import extension_names, present_extensions
from app.core.cli import listed_commands
from app.core.server.flask.application import METRICS, Understudy
from app.core.settings import load, settings_table
from scripts.removal_test import ROOT, dependents, link_server_without

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "surface"
SURFACE_FILE = FOLDER / "surface.json"
EXTENSIONS_FILE = FOLDER / "extensions.json"
"""For each extension, the part of the surface that it adds. The parts of extensions that require it
are not included.
"""
SCRIPT = """
rules:
- then: {text: Hello}
"""
API_FLAGS = (
    "--allow-runtime-lora-updating",
    "--embeddings-with-chat",
    "--enable-responses-store",
    "--enable-scale-out",
    "--enable-tokenizer-info-endpoint",
    "--kv-index",
    "--profiling",
    "--server-dev-mode",
)
"""Flags that add routes to the API."""
EVERY_FEATURE = (
    *API_FLAGS,
    "--console",
    "--data-parallel-mode=internal",
    "--data-parallel-size=2",
    "--enable-sleep-mode",
    "--kv-cache-metrics",
    "--kv-connector=nixl",
    "--lora-modules=adapter=/adapters/adapter",
    "--lora-residency-metrics",
    "--otlp-traces-endpoint=http://127.0.0.1:4318/v1/traces",
    "--profile=qwen3-14b-h100",
    "--sagemaker-enable-stateful-sessions",
    "--enable-cohere-api",
    "--middleware=werkzeug.middleware.proxy_fix.ProxyFix",
)
CONFIGURATIONS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "every feature": EVERY_FEATURE,
    "pooling": ("--task=pooling",),
    "sglang": ("--dialect=sglang",),
    "speech": ("--task=transcription",),
}
"""Flags by the name of a configuration."""
DIALECTS = {"sglang"}
"""Configurations with routes that no server with every feature has."""
VARIABLE = re.compile(r"<(?:\w+:)?(\w+)>")
"""Variable part of a path in Flask."""
Surface = dict[str, Any]
"""Dictionaries and lists of texts."""
FAMILY = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)


def surface() -> Surface:
    """Returns the surface of this checkout, made of JSON types only."""
    configurations = {name: configuration_surface(flags) for name, flags in CONFIGURATIONS.items()}
    return {
        "settings": settings(),
        "commands": sorted(listed_commands()),
        "configurations": configurations,
    }


def settings() -> dict[str, str]:
    """Returns default, environment variables and other flags of each setting, by its name."""
    texts = {}
    for name, setting in sorted(settings_table().by_name.items()):
        other_flags = [f"--{other}" for other in setting.about.also]
        default = json.dumps(setting.shown(setting.default))
        texts[name] = " ".join([default, *setting.env, *other_flags])
    return texts


def configuration_surface(flags: tuple[str, ...]) -> Surface:
    """Returns routes, middleware, random streams and metric families of a server with `flags`."""
    with tempfile.TemporaryDirectory() as folder, recorded_streams() as stream_names:
        script = Path(folder) / "script.yaml"
        script.write_text(SCRIPT, "utf-8")
        arguments = ["--force-dummy-tokenizer", "--seed=7", *filter(is_flag, flags)]
        if flags == EVERY_FEATURE and is_flag("--script"):
            arguments.append(f"--script={script}")
        app = create_app(load(arguments, {}))
    return {
        "routes": routes(app),
        "middleware": [type(middleware).__name__ for middleware in app.middleware.members],
        "random streams": sorted(set(stream_names)),
        "metric families": metric_families(app),
    }


def is_flag(argument: str) -> bool:
    """Returns whether the setting of a flag is there: an extension may have declared it."""
    return argument.removeprefix("--").partition("=")[0] in settings_table().by_name


@contextmanager
def recorded_streams() -> Iterator[list[str]]:
    """Collects the names of all random streams that are made during the block."""
    names: list[str] = []
    make_stream = Streams.__call__

    def record_and_make(streams: Streams, name: str) -> Random:
        names.append(name)
        return make_stream(streams, name)

    Streams.__call__ = record_and_make  # type: ignore[method-assign, assignment]
    try:
        yield names
    finally:
        Streams.__call__ = make_stream  # type: ignore[method-assign]


def routes(app: Understudy) -> list[str]:
    """Returns "METHOD path (blueprint)" of each route, sorted."""
    lines = []
    for rule in app.url_map.iter_rules():
        blueprint = rule.endpoint.partition(".")[0]
        lines += [f"{method} {rule.rule} ({blueprint})" for method in rule.methods or ()]
    return sorted(lines)


def metric_families(app: Understudy) -> dict[str, str]:
    """Returns the type of each family on the metrics page, by its name."""
    page = app.test_client().get(METRICS).get_data(as_text=True)
    return dict(sorted(FAMILY.findall(page)))


def subtract(whole: Any, part: Any) -> Any:
    """Returns a surface without the texts of a part of it. What then is empty stays there."""
    if isinstance(whole, list):
        return [text for text in whole if text not in part]
    remaining = {}
    for name, value in whole.items():
        if name not in part:
            remaining[name] = value
        elif not isinstance(value, str):
            remaining[name] = subtract(value, part[name])
    return remaining


def without_empty(value: Any) -> Any:
    """Returns a part of a surface without its empty dictionaries and lists."""
    if not isinstance(value, dict):
        return value
    members = {name: without_empty(member) for name, member in value.items()}
    return {name: member for name, member in members.items() if member}


def parts_of_extensions(whole: Surface, names: Collection[str]) -> dict[str, Surface]:
    """Returns what each extension in `names` adds to the surface `whole`, by its name.

    Raises:
        RuntimeError: a copy without an extension cannot print its surface.
        ValueError: without an extension, the surface has something that it does not have with it.
    """
    missing = {}
    for name in sorted(set(names).union(*map(dependents, names))):
        print(f"without {name} ...", file=sys.stderr)
        reduced = surface_without(name)
        missing[name] = subtract(whole, reduced)
        if subtract(whole, missing[name]) != reduced:
            raise ValueError(f"the surface without {name} is not a part of the whole surface")
    parts = {}
    for name in names:
        part = missing[name]
        for dependent in sorted(dependents(name)):
            part = subtract(part, missing[dependent])
        parts[name] = without_empty(part)
    return parts


def surface_without(name: str) -> Surface:
    """Returns the surface of this checkout without an extension.

    Files are linked: a copy would take minutes where the checkout has environments of many GB.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        link_server_without(name, copy)
        for part in ("scripts", "vllm_understudy"):
            (copy / part).symlink_to(ROOT / part)
        command = [sys.executable, "-m", "scripts.surface"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the surface without {name} cannot be printed:\n{done.stderr}")
    reduced: Surface = json.loads(done.stdout)
    return reduced


def stored_surface() -> Surface:
    """Returns the stored surface of the core and of the extensions that are present."""
    stored: Surface = json.loads(SURFACE_FILE.read_text("utf-8"))
    for part in absent_parts():
        stored = subtract(stored, part)
    return stored


def stored_settings() -> set[str]:
    """Returns the names of all settings, those of extensions that are not present included."""
    return set(json.loads(SURFACE_FILE.read_text("utf-8"))["settings"])


def absent_paths() -> set[str]:
    """Returns the paths of routes that a server with every feature lacks without some extensions.

    A path that two extensions add is absent unless a present one adds it to such a server.
    """
    parts: dict[str, Surface] = json.loads(EXTENSIONS_FILE.read_text("utf-8"))
    present = {extension.name for extension in present_extensions()}
    absent: set[str] = set()
    offered: set[str] = set()
    for name, part in parts.items():
        if name in present:
            offered |= paths_of(part, CONFIGURATIONS.keys() - DIALECTS)
        else:
            absent |= paths_of(part, CONFIGURATIONS)
    return absent - offered


def paths_of(part: Surface, configurations: Iterable[str]) -> set[str]:
    """Returns the paths of the routes that an extension adds in some configurations."""
    paths = set()
    for name in configurations:
        for route in part.get("configurations", {}).get(name, {}).get("routes", ()):
            path = route.split()[1]
            paths.add(VARIABLE.sub(r"{\1}", path))
    return paths


def absent_parts() -> list[Surface]:
    """Returns the stored parts of the extensions that are not present."""
    parts: dict[str, Surface] = json.loads(EXTENSIONS_FILE.read_text("utf-8"))
    present = {extension.name for extension in present_extensions()}
    return [part for name, part in parts.items() if name not in present]


def as_text(value: Mapping[str, object]) -> str:
    """Returns the JSON text of a surface, for lines of a diff."""
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--write",
        nargs="*",
        metavar="EXTENSION",
        help=f"store the surface in {SURFACE_FILE.name}, and the parts of these or all extensions",
    )
    names = parser.parse_args().write
    unknown = sorted({*(names or ())} - {*extension_names()})
    if unknown:
        parser.error(f"no extension: {', '.join(unknown)}")
    whole = surface()
    if names is not None:
        parts = {}
        if names:
            parts = json.loads(EXTENSIONS_FILE.read_text("utf-8"))
        parts |= parts_of_extensions(whole, names or extension_names())
        parts = {name: part for name, part in parts.items() if name in extension_names()}
        absent = sorted({*extension_names()} - parts.keys())
        if absent:
            parser.error(f"name these extensions, too, whose parts are not stored: {absent}")
        SURFACE_FILE.write_text(as_text(whole), "utf-8")
        EXTENSIONS_FILE.write_text(as_text(parts), "utf-8")
    else:
        print(as_text(whole), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
