"""The configuration of pytest for vLLM's tests."""

import os
import subprocess
import sys
from pathlib import Path

from fidelity.judge.environment import pytest_command


def test_options_of_the_checkout_do_not_apply_to_the_tests_of_vllm(tmp_path: Path) -> None:
    options = '[tool.pytest.ini_options]\naddopts = "--strict-markers"\n'
    (tmp_path / "pyproject.toml").write_text(options)
    folder = tmp_path / ".judge" / "0.32.0"
    (folder / "tests").mkdir(parents=True)
    test = "import pytest\n\n\n@pytest.mark.only_in_vllm\ndef test():\n    pass\n"
    (folder / "tests/test_marked.py").write_text(test)
    for plugin in ("understudy_launcher", "understudy_outcomes"):
        (folder / f"{plugin}.py").touch()
    done = subprocess.run(
        pytest_command(Path(sys.executable), folder, ["tests/test_marked.py"]),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
