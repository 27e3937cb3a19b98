"""Writes docs/configuration.md from the table of settings: `python -m config.document`."""

from pathlib import Path

from config.settings import SECTIONS, TABLE, Setting
from config.sources import IGNORED, RETIRED

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"

_INTRODUCTION = """\
# Configuration

<!-- Written by `python -m config.document`; change config/sections or config/document.py instead. -->

A setting is taken from the first of these places that has it:

1. its flag, when the server is started with `python -m app --port 8001 ...`, or with vLLM's command line:
   [serve.md](serve.md)
2. its environment variable, `SIM_` and its name in capitals with underscores; this is also how
   `gunicorn wsgi:app` is configured
3. the YAML file that `--config` or `SIM_CONFIG` names; `config/examples` has some
4. its default

A value that breaks a rule, an unknown flag and an unknown YAML key stop the start with one line that names
the setting, the value, the place and the rule; the exit status is 1, of an unknown flag or a flag without
its value 2, with the nearest name. An unknown `SIM_` variable only causes a
warning, because platforms inject variables of their own. (A Kubernetes service that is called `sim` injects a
`SIM_PORT` that is not a port: set `enableServiceLinks: false` in the pod.)

## How values are written

| kind | flag | environment | YAML |
|---|---|---|---|
| text, number | `--port 8001` `--port=8001` | `SIM_PORT=8001` | `port: 8001` |
| switch | `--access-log` `--no-access-log` | `SIM_ACCESS_LOG=true` | `access-log: true` |
| duration | `--read-timeout 1m30s` | `SIM_READ_TIMEOUT=90s` | `read-timeout: 1.5m` |
| list | `--served-model-name a b` | `SIM_SERVED_MODEL_NAME=a,b` | `served-model-name: [a, b]` |

A duration is a sequence of decimal numbers with the units `ns`, `us` (or `µs`), `ms`, `s`, `m`, `h`; a bare
integer counts milliseconds. A switch is `true`, `yes`, `on`, `1` or `false`, `no`, `off`, `0`, also after its
flag (`--access-log=false`). In the environment, a list whose items have commas is written as a JSON array, an
empty variable counts as not set, and `""` (two quotes) stands for an empty value. The YAML file is one flat
mapping; its keys may be written with underscores. What is given again replaces what was there before: lists
are never merged. Some settings have other names, too, that vLLM or an earlier program has for them
(`--num-blocks`); one place that gives different values by two names of one setting stops the start.

`-v N` is understood as klog's verbosity: 0 and 1 log warnings, 2 and 3 info, 4 debug, 5 and more trace.
Other flags of klog, of simulators and of vLLM are accepted and change nothing: {ignored}.

Settings marked *live* may change while the server runs. [Plugins](plugins.md) add settings of their own;
`python -m app --plugin FILE --help` tells those, too.
"""
_RETIRED = """\
## Retired settings

Flags, variables and YAML keys of these names still start the server, with a line of warning, until version
0.3. They change nothing:

| setting | what holds instead |
|---|---|
"""
_HEAD = "| setting | type | default | environment | live | meaning |\n|---|---|---|---|---|---|\n"


def render() -> str:
    ignored = ", ".join(f"`--{name}`" for name in sorted(IGNORED - RETIRED.keys()))
    retired = "".join(f"| `{name}` | {reason} |\n" for name, reason in RETIRED.items())
    sections = [
        f"## {group.capitalize()}\n\n{section.__doc__}\n\n{_HEAD}"
        + "".join(_line(row) for row in TABLE if row.group == group)
        for group, section in SECTIONS.items()
    ]
    return "\n".join([_INTRODUCTION.format(ignored=ignored), *sections, _RETIRED + retired])


def _line(row: Setting) -> str:
    kind = f"{row.kind.name} ({row.unit})" if row.unit else row.kind.name
    default = row.write(row.default)
    shown = "empty" if default in ("", "[]", "{}") else f"`{default}`"
    rules = "; ".join(filter(None, (row.limits, *(rule.text for rule in row.rules))))
    also = f" Also `{'`, `'.join(row.also)}`." if row.also else ""
    meaning = row.help + (f" The value {rules}." if rules else "") + (" Never shown." if row.secret else "")
    variables = " ".join(f"`{name}`" for name in row.env)
    cells = (f"`{row.name}`", kind, shown, variables, "live" if row.live else "", meaning + also)
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render(), "utf-8")
