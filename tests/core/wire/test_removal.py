"""A server without the folder of an extension starts, and answers a chat."""

from pathlib import Path

import pytest

from app.core.built_in import extension_names
from scripts.removal_test import CHOSEN, choose, failure_without, tool_tests


@pytest.mark.parametrize("name", extension_names())
def test_server_completes_a_chat_after_any_app_extension_is_removed(name: str) -> None:
    assert failure_without(name, tests=False, workers=0) is None


def test_weekly_removal_covers_every_extension() -> None:
    weeks = -(-len(extension_names()) // CHOSEN)
    chosen = [choose(week) for week in range(2970, 2970 + weeks)]
    assert all(len(set(names)) == CHOSEN for names in chosen)
    assert {name for names in chosen for name in names} == {*extension_names()}


def test_tests_of_tools_that_need_a_removed_extension_are_left_out(tmp_path: Path) -> None:
    files = {
        "workbench/runs/pod.py": "from app.extensions.console import page",
        "workbench/runs/late.py": "def load():\n    import app.extensions.console",
        "tests/workbench/test_pod.py": "from workbench.runs import pod",
        "tests/core/test_pod.py": "from workbench.runs import pod",
        "tests/core/test_page.py": "from app.extensions.console import page",
        "tests/workbench/test_late.py": "from workbench.runs import late",
        "tests/workbench/test_trace.py": "def test():\n    from tests.extensions.tracing import t",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    tests_of_pods = ["tests/core/test_pod.py", "tests/workbench/test_pod.py"]
    assert tool_tests(tmp_path, ["console"]) == tests_of_pods
    assert tool_tests(tmp_path, ["tracing"]) == ["tests/workbench/test_trace.py"]
    assert tool_tests(tmp_path, ["journal"]) == []
