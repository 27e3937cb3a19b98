"""Declaration of settings, errors of configuration, and the kind of installation.

A setting is a field of a section, with its facts in the annotation:

    max_num_seqs: Annotated[Count, About(unit="sequences")] = 256
    '''Sequences that run at the same time.'''

The docstring under the field is the help and the documentation of the setting; a plugin's is in
`About`. `msgspec.Meta` has the limits that msgspec checks; a `SettingRule` has any other limit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

ROUNDING = 1e-9
"""Relative tolerance, so that rounding of floats does not fail 21ms under "30 % of 70ms"."""
MAX_DEVIATION_PERCENT = 30
"""Maximum standard deviation, in % of its mean."""
MAX_SHOWN_LENGTH = 80
"""Maximum length of a value in a message, in characters."""
PORTS = 1 << 16
"""Number of TCP ports."""
# Markers of types whose texts differ from msgspec's (`config.kinds`).
DURATION = "duration"
JSON = "JSON"
OBJECTS = "list of objects"
SIZE = "size"

Extra = Literal["calibrate", "check", "dask", "engine", "fleet", "grpc", "plan", "tracing"]
"""Optional part: an extra of pyproject.toml."""

IS_CLONE = (Path(__file__).resolve().parent.parent / "requirements.txt").is_file()
"""True in a clone: a wheel or an image has no requirements file."""
COMMAND = "understudy"
"""Name of the command: `make run`, `make venv` and `pip install` all put it beside Python."""
PACKAGES: Mapping[Extra, tuple[str, ...]] = {
    "calibrate": ("cma", "numpy"),
    "check": ("promql_parser",),
    "dask": ("distributed",),
    "engine": ("torch", "safetensors", "llguidance"),
    "fleet": ("matplotlib",),
    "grpc": ("smg_grpc_proto", "grpc_health", "grpc_reflection", "h2"),
    "plan": ("joblib",),
    "tracing": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
"""Optional part -> modules that it imports."""

Count = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Duration = Annotated[float, DURATION, Meta(ge=0)]
"""Seconds in the program; a Go style text in flags, variables and files."""
PositiveDuration = Annotated[float, DURATION, Meta(gt=0)]
Size = Annotated[int, SIZE]
"""Bytes in the program; a text such as 96MB in flags, variables and files."""
Json = Annotated[str, JSON]
"""JSON text; a YAML file may contain YAML instead."""
Objects = Annotated[tuple[str, ...], OBJECTS]
"""Texts or JSON objects; a YAML file may contain mappings instead."""
NonEmpty = Annotated[str, Meta(pattern=r"\S", description="must not be empty")]
NonEmptyItems = Annotated[tuple[NonEmpty, ...], Meta(description="must not contain an empty item")]
"""A `description` words a rule that does not limit a number."""


class ConfigError(ValueError):
    """Raised for a wrong setting; the message is one line with setting, value, source and rule."""

    status = 1
    """Exit status of a command that ends with this error."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class UsageError(ConfigError):
    """Raised for an invalid command line."""

    status = 2


def install(extra: Extra) -> str:
    """Returns the command that installs an optional part."""
    if IS_CLONE:
        return f"pip install -e '.[{extra}]'"
    return f"pip install 'vllm-understudy[{extra}]'"


def missing(extra: Extra) -> list[str]:
    """Returns the modules of an optional part that are not installed."""
    absent = []
    for module in PACKAGES[extra]:
        with suppress(ImportError):  # the module's package is missing
            if find_spec(module) is not None:
                continue
        absent.append(module)
    return absent


def check_installed(extra: Extra, wanted_by: str) -> None:
    """Checks that an optional part is installed.

    Raises:
        ConfigError: A module is missing; the message begins with `wanted_by`.
    """
    names = missing(extra)
    if names:
        raise ConfigError(f"{wanted_by}: requires {' and '.join(names)}: {install(extra)}")


class Section(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A group of settings; the docstring is the heading in help and documentation."""

    def conflicts(self, settings: Any) -> Iterator[tuple[str, str]]:
        """Yields the name of a setting and the rule that it breaks, for each conflict.

        `settings` are all settings of the server, a `config.Settings`.
        """
        yield from ()

    def extras(self) -> Mapping[Extra, str]:
        """Returns the optional parts that these settings need, each with the setting's name."""
        return {}


class About(Struct, frozen=True):
    """Facts of a setting: meaning, unit, other names, and handling of its value."""

    help: str = ""
    """Meaning of the setting; empty where the field has a docstring."""
    unit: str = ""
    env: tuple[str, ...] = ()
    """Additional environment variables, with lower precedence than ``SIM_<NAME>``."""
    also: tuple[str, ...] = ()
    """Names in other programs, accepted as flags, YAML keys and ``SIM_`` variables."""
    live: bool = False
    """May change while the server runs."""
    simulated: bool = False
    """For the simulated engine only: a real engine accepts only the default."""
    repeated: bool = False
    """A list whose flag may be repeated: each flag adds an item."""
    merge: Callable[[Any, object], object] | None = None
    """Returns the value after a change of its parts; raises ValueError for a wrong change. None
    for a setting that only changes as a whole."""
    secret: bool = False
    """Masked in messages and logs."""


LIVE = About(live=True)
"""Facts of a setting that may change while the server runs."""


SIMULATED = About(simulated=True)
"""Facts of a setting for the simulated engine only."""


SIMULATED_LIVE = About(simulated=True, live=True)
"""Facts of a setting for the simulated engine only that may change while the server runs."""


class SettingRule(Struct, frozen=True):
    """A rule beyond msgspec: relation to other settings of the section, or form of a text."""

    text: str
    """Completes the sentence "the value ..."."""
    flaw: Callable[[Any, Any], str]
    """(value, its section) -> flaw, worded as `text`; empty for a valid value."""


def deviation_of(mean: str) -> SettingRule:
    """Rejects standard deviations above `MAX_DEVIATION_PERCENT` of the section's field `mean`."""
    text = f"must not be more than {MAX_DEVIATION_PERCENT} % of {mean.replace('_', '-')}"
    max_share = MAX_DEVIATION_PERCENT / 100 * (1 + ROUNDING)

    def flaw(value: float, section: Section) -> str:
        return text if value > max_share * getattr(section, mean) else ""

    return SettingRule(text, flaw)


def not_below(other: str) -> SettingRule:
    """Rejects values below the section's field `other`."""
    text = f"must not be less than {other.replace('_', '-')}"

    def flaw(value: float, section: Section) -> str:
        return text if value < getattr(section, other) else ""

    return SettingRule(text, flaw)


def understood_by(read: Callable[[Any], object], text: str) -> SettingRule:
    """Rejects values for which `read` raises ValueError; the flaw has the error's text."""

    def flaw(value: object, section: Section) -> str:
        try:
            read(value)
        except ValueError as error:
            return f"is wrong: {error}"
        return ""

    return SettingRule(text, flaw)


def shown(value: object) -> str:
    """Returns a value for a message, cut at `MAX_SHOWN_LENGTH` characters."""
    text = repr(value)
    if len(text) > MAX_SHOWN_LENGTH:
        text = text[:MAX_SHOWN_LENGTH] + "…"
    return text


def suggestion(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Returns ``; did you mean ...?`` if one of `names` is close to `name`, else an empty text."""
    close = closest(name, names)
    return f"; did you mean {prefix}{close}?" if close else ""


def closest(name: str, names: Iterable[str]) -> str:
    """Returns the one of `names` that `name` may be a misspelling of; empty without one."""
    from difflib import get_close_matches  # needed for errors only

    candidates = list(names)
    close = get_close_matches(name, candidates, n=1, cutoff=0.75)
    if not close:
        letters = sorted(name)
        close = [candidate for candidate in candidates if sorted(candidate) == letters]
    return close[0] if close else ""


def port_of(endpoint: str) -> int | None:
    """Returns the port of a tcp address in vLLM's syntax; None for ipc and inproc.

    Raises:
        ValueError: `endpoint` is not an address of ZMQ.
    """
    scheme, _, address = endpoint.partition("://")
    if scheme not in ("tcp", "ipc", "inproc") or not address:
        raise ValueError(
            f"must be a ZMQ address that begins with tcp://, ipc://, or inproc://, got {endpoint!r}"
        )
    if scheme != "tcp":
        return None
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) < PORTS):
        raise ValueError(f"must be a ZMQ address such as tcp://HOST:PORT, got {endpoint!r}")
    return int(port)


def zmq_address() -> SettingRule:
    """Rejects texts that are neither empty nor an address of ZMQ."""

    def check(value: str) -> None:
        if value:
            port_of(value)

    return understood_by(
        check, "must be tcp://host:port, with a number as port, ipc:// or inproc://"
    )
