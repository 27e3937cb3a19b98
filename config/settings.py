"""All settings of the server, composed of sections, and the table with the facts of each setting.

`Settings` has the sections of the core. `with_sections` adds those of extensions and of plugins.
Flag and YAML key are a field's name with dashes; the environment variable is ``SIM_`` and the name
in capitals. Durations are in seconds.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields, replace

from config.declaration import DURATION, JSON, SIZE, About, Section, SettingRule
from config.durations import format_duration
from config.kind import Kind, checked
from config.kinds import kind_of, limits, written
from config.sections.api import ApiSettings
from config.sections.engine import (
    EngineSettings,
    KVCacheSettings,
    LatencySettings,
    SchedulingSettings,
    StepSettings,
)
from config.sections.model import LoraSettings, ModelSettings, TokenizerSettings
from config.sections.observability import LogSettings, MetricsSettings
from config.sections.reply import ReplySettings, ToolSettings
from config.sections.server import (
    AccessSettings,
    Plugin,
    PluginSettings,
    ServerSettings,
    TlsSettings,
)
from config.sizes import format_size

MASK = "***"
T = TypeVar("T")
SectionT = TypeVar("SectionT", bound=Section)


class Settings(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """All settings, one attribute per section. Subclasses add those of extensions and plugins."""

    PLUGINS: ClassVar[tuple[Plugin, ...]] = ()
    """Plugins, in the order of their calls."""
    RULES: ClassVar[Mapping[str, tuple[SettingRule, ...]]] = {}
    """Further rules of settings, by name: facts of vLLM, which this package does not import."""

    server: ServerSettings = ServerSettings()
    tls: TlsSettings = TlsSettings()
    access: AccessSettings = AccessSettings()
    engine: EngineSettings = EngineSettings()
    model: ModelSettings = ModelSettings()
    lora: LoraSettings = LoraSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    scheduling: SchedulingSettings = SchedulingSettings()
    reply: ReplySettings = ReplySettings()
    tools: ToolSettings = ToolSettings()
    plugins: PluginSettings = PluginSettings()
    kvcache: KVCacheSettings = KVCacheSettings()
    steps: StepSettings = StepSettings()
    latency: LatencySettings = LatencySettings()
    api: ApiSettings = ApiSettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Yields the name of a setting and the rule that it breaks, for each further conflict."""
        yield from ()

    @property
    def table(self) -> "Table":
        """Rows of all settings, those of plugins included."""
        return table_of(type(self))

    def section(self, kind: type[SectionT]) -> SectionT:
        """Returns the section of an extension. LookupError if this server lacks the extension."""
        group = self.table.groups.get(kind)
        if group is None:
            raise LookupError(f"no section {kind.__name__}")
        return cast(SectionT, getattr(self, group))

    def get(self, name: str, default: T) -> T:
        """Returns the value of a setting; `default` if this server lacks its extension."""
        row = self.table.by_name.get(name)
        if row is None:
            return default
        return cast(T, row.value(self))

    def dump(self, masked: bool = True) -> dict[str, object]:
        """Returns setting name -> value for logs, as `Setting.shown`."""
        return {row.name: row.shown(row.value(self), masked) for row in self.table.rows}

    def changed(self, values: Mapping[str, object]) -> "Settings":
        """Returns a copy with other values: setting name -> value, as from `Setting.read`."""
        sections: dict[str, dict[str, object]] = {}
        for name, value in values.items():
            row = self.table.by_name[name]
            sections.setdefault(row.group, {})[row.attribute] = value
        changes = {
            group: replace(getattr(self, group), **fields) for group, fields in sections.items()
        }
        return replace(self, **changes)


class Setting(Struct, frozen=True, kw_only=True):
    """A row of the table: the facts of a setting."""

    name: str
    """Flag (without leading dashes) and YAML key."""
    attribute: str
    group: str
    """Attribute of `Settings` with the section."""
    kind: Kind
    type: Any
    """Type for msgspec's check of a value."""
    optional: bool
    """True if None is valid, as an empty text or a YAML null."""
    default: object
    env: tuple[str, ...]
    """Environment variables, the strongest first."""
    section: type[Section]
    about: About
    limits: str
    """msgspec's checks, as the end of the sentence "the value ..."; empty without checks."""
    rules: tuple[SettingRule, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Name, and names in other programs."""
        return (self.name, *self.about.also)

    @property
    def help(self) -> str:
        """Meaning of the setting, in one line; read from the source on demand."""
        return self.about.help or field_docs(self.section)[self.attribute]

    def read(self, raw: object) -> object:
        """Converts a text, or a value of YAML or JSON.

        Raises:
            ValueError: `raw` is invalid; the message has the rule.
        """
        if self.optional and (raw is None or raw == ""):
            return None
        value = self.kind.read(raw)
        if self.limits:
            return checked(value, self.type, self.limits)
        return value

    def write(self, value: Any) -> str:
        """Returns the text of a value, as `read` accepts."""
        if self.kind.name == DURATION:
            return format_duration(value)
        if self.kind.name == SIZE and value is not None:
            return format_size(value)
        return written(value)

    def value(self, settings: Settings) -> Any:
        """Returns the setting's value in `settings`."""
        return getattr(getattr(settings, self.group), self.attribute)

    def shown(self, value: Any, masked: bool = True) -> object:
        """Returns `value` for logs, as a JSON type.

        Durations and sizes are texts, and secrets are ``***`` unless empty or not `masked`.
        """
        if self.about.secret and masked and value:
            return MASK
        if self.kind.name in (DURATION, SIZE) and value is not None:
            return self.write(value)
        if self.kind.name == JSON and value is not None:
            return json.loads(value)
        if isinstance(value, tuple):
            return list(value)
        return value


class Table:
    """Rows of all settings of a kind, in the order of sections."""

    def __init__(self, kind: type[Settings]) -> None:
        self.sections: dict[str, type[Section]] = {field.name: field.type for field in fields(kind)}
        self.groups = {section: group for group, section in self.sections.items()}
        prefixes = {plugin.group: f"{plugin.group}_" for plugin in kind.PLUGINS}
        self.rows = tuple(
            replace(row, rules=row.rules + kind.RULES.get(row.name, ()))
            for group, section in self.sections.items()
            for row in rows(group, section, prefixes.get(group, ""))
        )
        self.by_name = {name: row for row in self.rows for name in row.names}
        """Any name of a setting -> row."""


@lru_cache(maxsize=8)
def table_of(kind: type[Settings]) -> Table:
    """Returns the table of `Settings`, or of its subclass with extensions and plugins."""
    return Table(kind)


def with_sections(
    base: type[Settings], sections: Mapping[str, type[Section]], plugins: tuple[Plugin, ...] = ()
) -> type[Settings]:
    """Returns a subclass of `base` with more sections, by group, and with `plugins`."""
    added = [(group, section, section()) for group, section in sections.items()]
    namespace = {"PLUGINS": plugins}
    kind = msgspec.defstruct("Settings", added, bases=(base,), namespace=namespace, kw_only=True)
    return cast(type[Settings], kind)


def rows(group: str, section: type[Section], prefix: str = "") -> tuple[Setting, ...]:
    """Returns the rows of a section, in the order of fields.

    Names in a plugin's section begin with `prefix`, the plugin's name.
    """
    return tuple(_row(group, section, field, prefix) for field in fields(section))


def _row(group: str, section: type[Section], field: FieldInfo, prefix: str) -> Setting:
    name = prefix + field.name
    plain, extras, optional = _split_annotation(field.type)
    about = next((extra for extra in extras if isinstance(extra, About)), None)
    if prefix and about is None:  # plugins name the help of a setting in `About`
        raise TypeError(f"the field {field.name} has no `About` annotation")
    about = about or About()
    kind = kind_of(plain, extras)
    return Setting(
        name=name.replace("_", "-"),
        attribute=field.name,
        group=group,
        section=section,
        kind=kind,
        type=field.type,
        optional=optional,
        default=field.default,
        limits=limits(kind, [extra for extra in extras if isinstance(extra, Meta)]),
        rules=tuple(extra for extra in extras if isinstance(extra, SettingRule)),
        env=(*map(variable, (name, *about.also)), *about.env),
        about=about,
    )


@cache
def field_docs(section: type[Section]) -> Mapping[str, str]:
    """Returns field -> docstring under the field, as one line. Reads the source of the section."""
    import ast  # slow to import, and needed for help only

    module = ast.parse(Path(str(sys.modules[section.__module__].__file__)).read_text("utf-8"))
    classes = {node.name: node.body for node in module.body if isinstance(node, ast.ClassDef)}
    return {
        field.target.id: " ".join(str(doc.value.value).split())
        for field, doc in pairwise(classes[section.__name__])
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
    }


def variable(name: str) -> str:
    """Returns the environment variable of a setting or field."""
    return f"SIM_{name.replace('-', '_').upper()}"


def _split_annotation(annotation: Any) -> tuple[object, list[object], bool]:
    """Splits an annotation into plain type, metadata of `Annotated`, and True if None is valid."""
    origin = get_origin(annotation)
    if origin is Annotated:
        annotated, *extras = get_args(annotation)
        plain, inner, optional = _split_annotation(annotated)
        return plain, [*inner, *extras], optional
    if origin in (Union, UnionType):
        plain, extras, _ = _split_annotation(
            next(part for part in get_args(annotation) if part is not type(None))
        )
        return plain, extras, True
    return annotation, [], False
