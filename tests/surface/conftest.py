"""Leaves out the tests of files that describe all extensions where an extension was deleted."""

from scripts.surface import absent_parts

collect_ignore = []
if absent_parts():
    collect_ignore = ["test_reference.py", "wire/test_one_request.py", "wire/test_parts.py"]
