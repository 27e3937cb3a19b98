"""The settings of a command line as environment variables of another process."""

import os
from collections.abc import Mapping
from contextlib import suppress

from config.settings import Settings, variable
from config.sources import CONFIG, EMPTY, Flags, config_path

FOLDER = "UNDERSTUDY_FOLDER"
"""Environment variable with the folder where a command was called.

A server imports its modules from its own folder, but looks for the files of its settings here.
"""


def as_environment(flags: Flags, settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns variables that give a process in another folder the same `settings` without flags.

    They have the values of the command line, with paths as they were written: a model's path is
    also its ID. `FOLDER` has the folder of this process.
    """
    path = config_path(flags, environ)
    variables = {FOLDER: _working_folder()}
    if path:
        variables[CONFIG] = path
    elif CONFIG in environ:
        variables[CONFIG] = EMPTY
    for row in settings.table.rows:
        is_flag = any(name in flags.values for name in row.names)
        if is_flag or row.name in flags.fallbacks:
            variables[row.env[0]] = row.write(row.value(settings)) or EMPTY
            for name in map(variable, row.about.also):
                if name in environ:
                    variables[name] = ""
    return variables


def _working_folder() -> str:
    """Returns the folder of this process; empty if it was deleted."""
    with suppress(FileNotFoundError):
        return os.getcwd()
    return ""
