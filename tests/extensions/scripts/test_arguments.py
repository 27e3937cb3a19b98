"""Wrong arguments of commands end with one line."""

import pytest

from tests.config.test_command import check_error


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["script", "try", "--mesages", "x", "y"],
            "unknown flag --mesages; did you mean --messages?",
        ),
        (
            ["script", "chek"],
            "argument command: invalid choice: 'chek' (choose from 'check', 'try')",
        ),
    ],
)
def test_invalid_arguments_of_the_script_command_print_a_one_line_error(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_error(argv, message, capsys)
