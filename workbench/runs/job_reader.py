"""Reads the words of a command line, and tables of files, as jobs of `simulate`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence

from app.core.settings import load as load_settings
from app.core.settings import settings_type
from config.flags import FlagTable, texts_of, words_of
from config.settings import Settings
from workbench.runs.job_spec import JobSpec, field_names, flag_name
from workbench.runs.simulate_flags import make_parser


def read_words(words: Sequence[str]) -> tuple[JobSpec, Settings]:
    """Returns the job of a command line of `simulate`, and the settings of its plugins.

    Raises:
        ConfigError: A flag is unknown, or has a wrong value.
    """
    parser = make_parser()
    options, setting_words = parser.parse_beside_settings(words, settings_type(), plugins_only=True)
    settings = load_settings(setting_words, {})
    return job_of(options, parser.table_of(words)), settings


def read_table(table: Mapping[str, object]) -> JobSpec:
    """Returns the job of flags by name, as files have them; texts of plugins are kept unread.

    Raises:
        UsageError: A flag has a wrong value.
    """
    texts = named_texts(table)
    return JobSpec(texts=texts, **make_parser().values_of(texts))


def named_texts(table: Mapping[str, object]) -> FlagTable:
    """Returns flags by name, as files have them, with their long names.

    Raises:
        UsageError: A switch is turned off by its negative form.
    """
    return make_parser().with_long_names(texts_of(table))


def job_of(options: Namespace, texts: FlagTable) -> JobSpec:
    """Returns the job of parsed options; `texts` are their flags as they were written."""
    values = {name: value for name, value in vars(options).items() if name in field_names()}
    return JobSpec(texts=texts, **values)


def read_settings(spec: JobSpec) -> Settings:
    """Returns the settings of the plugins of a job.

    Raises:
        ConfigError: A flag belongs to no plugin, or has a wrong value.
    """
    parser = make_parser()
    known = {flag_name(field) for field in field_names()}
    others = {name: text for name, text in spec.texts.items() if name not in known}
    words = words_of(others)
    _, setting_words = parser.parse_beside_settings(words, settings_type(), plugins_only=True)
    return load_settings(setting_words, {})
