"""Leaves out tests of two extensions, neither of which requires the other, if one was deleted."""

from tests.present import is_present

OTHER_EXTENSIONS = {
    "console/wire/test_axis.py": "lab",
    "console/wire/test_browser.py": "lab",
    "console/wire/test_compare.py": "lab",
    "console/wire/test_figures.py": "lab",
    "console/wire/test_server.py": "llm",
    "llm/test_grpc.py": "grpc",
    "llm/test_rehearse.py": "lab",
    "recording/test_proxy.py": "lab",
    "recording/test_script.py": "scripts",
    "recording/test_writer.py": "lab",
    "recording/wire/test_ways.py": "llm",
    "responses/test_protocol.py": "forms",
}
"""File of tests -> the other extension that it needs."""
collect_ignore = [file for file, name in OTHER_EXTENSIONS.items() if not is_present(name)]
