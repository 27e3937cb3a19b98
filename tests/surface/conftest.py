"""Leaves out the tests of files that describe all extensions where an extension was deleted."""

from app.core.built_in import BUILT_IN
from tests.present import is_present

collect_ignore = []
if not all(map(is_present, BUILT_IN)):
    collect_ignore = ["test_reference.py", "wire/test_parts.py"]
