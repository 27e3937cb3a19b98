"""Prints the surface of a server as JSON: what users and plugins can see of it.

    $ python -m scripts.surface           # print the surface of this checkout
    $ python -m scripts.surface --write   # store it in tests/surface/surface.json

A restructuring must keep the surface: the settings, the commands, and, for each configuration in
`CONFIGURATIONS`, the routes, the middleware from the outermost to the innermost, the names of the
random streams (renaming one changes every seeded reply) and the metric families. A test compares
the stored surface with that of the checkout, so that each change of the surface is a line of a
diff.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random

from app.core.application import create_app
from app.core.base.clock.random_streams import Streams
from app.core.cli import listed_commands
from app.core.server.flask.application import METRICS, Understudy
from app.core.settings import load, settings_table

SURFACE_FILE = Path(__file__).resolve().parents[1] / "tests" / "surface" / "surface.json"
SCRIPT = """
rules:
- then: {text: Hello}
"""
EVERY_FEATURE = (
    "--allow-runtime-lora-updating",
    "--console",
    "--enable-responses-store",
    "--enable-scale-out",
    "--enable-sleep-mode",
    "--enable-tokenizer-info-endpoint",
    "--kv-cache-metrics",
    "--kv-index",
    "--lora-modules=adapter=/adapters/adapter",
    "--lora-residency-metrics",
    "--otlp-traces-endpoint=http://127.0.0.1:4318/v1/traces",
    "--profile=qwen3-14b-h100",
    "--profiling",
    "--server-dev-mode",
)
CONFIGURATIONS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "every feature": EVERY_FEATURE,
    "pooling": ("--task=pooling",),
}
"""Flags by the name of a configuration."""
FAMILY = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)


def surface() -> dict[str, object]:
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


def configuration_surface(flags: tuple[str, ...]) -> dict[str, object]:
    """Returns routes, middleware, random streams and metric families of a server with `flags`."""
    with tempfile.TemporaryDirectory() as folder, recorded_streams() as stream_names:
        script = Path(folder) / "script.yaml"
        script.write_text(SCRIPT, "utf-8")
        arguments = ["--force-dummy-tokenizer", "--seed=7", *flags]
        if flags == EVERY_FEATURE:
            arguments.append(f"--script={script}")
        app = create_app(load(arguments, {}))
    return {
        "routes": routes(app),
        "middleware": [type(middleware).__name__ for middleware in app.middleware.members],
        "random streams": sorted(set(stream_names)),
        "metric families": metric_families(app),
    }


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


def as_text(value: dict[str, object]) -> str:
    """Returns the JSON text of a surface, for lines of a diff."""
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help=f"store the surface in {SURFACE_FILE.name}"
    )
    text = as_text(surface())
    if parser.parse_args().write:
        SURFACE_FILE.write_text(text, "utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
