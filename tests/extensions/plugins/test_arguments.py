"""Wrong arguments of commands end with one line."""

import pytest

from tests.config.test_command import check_error


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["plugins", "--plugn", "x"], "unknown flag --plugn; did you mean --plugin?"),
    ],
)
def test_error_for_a_misspelled_plugins_flag_contains_a_suggestion(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_error(argv, message, capsys)
