"""Paths that a file may name for `check` and `rehearse` to read: start at `is_in_checkout`.

A file of a pull request can name any file of the machine, also by a link. Only files beside it are
read: those of the working folder, which is the checkout in a CI, or of the folder of a file that
lies elsewhere. What a user types is read wherever it is.
"""

from __future__ import annotations

import os

from workbench.check.findings import Place

COMMAND_LINE = "<command line>"
"""Name of the words of a command line, which a user has typed."""
OUTSIDE = "is outside of the folder"
"""Why a path is not read, as the end of a sentence."""
GIT = ".git"
"""Folder of a checkout that may hold a token."""


def is_in_checkout(path: str, named_in: Place) -> bool:
    """Returns whether a path of a file may be read: it leads to a file beside the file.

    A path on the command line may always be read.
    """
    if is_typed(named_in):
        return True
    root = _root_of(named_in.file)
    return all(_leads_below(form, root) for form in (path, os.path.expanduser(path)))


def _leads_below(path: str, root: str) -> bool:
    try:
        target = os.path.realpath(path)
    except (OSError, ValueError):  # no file can have this name
        return False
    return GIT not in target.split(os.sep) and is_below(target, root)


def is_typed(place: Place) -> bool:
    """Returns whether a user has typed the words at a place, which no file has."""
    return place.file == COMMAND_LINE and not os.path.lexists(COMMAND_LINE)


def is_below(path: str, folder: str) -> bool:
    """Returns whether an absolute path is in a folder, which is not the root of the machine."""
    return folder != os.sep and (path == folder or path.startswith(folder + os.sep))


def _root_of(file: str) -> str:
    """Returns the working folder, or the folder of a file that lies elsewhere."""
    folder = os.getcwd()
    path = os.path.abspath(file)
    if not is_below(path, folder) and os.path.isfile(path):
        folder = os.path.dirname(path)
    return os.path.realpath(folder)
