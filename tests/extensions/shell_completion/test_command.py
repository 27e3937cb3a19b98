"""The command that prints completions for shells."""

import pytest

from app.core import cli as command


def test_unknown_shell_exits_with_status_2_and_a_one_line_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["completion", "csh"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (
        "error: argument shell: invalid choice: 'csh' (choose from 'bash', 'zsh', 'fish')\n"
    )
