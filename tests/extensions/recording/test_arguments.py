"""Wrong arguments of the recording proxy end with one line."""

import pytest

from tests.config.test_command import check_error


@pytest.mark.parametrize(
    "argv", [["record", "--proxy", "--taget", "x"], ["record", "--taget", "x", "--proxy"]]
)
def test_error_for_a_misspelled_record_flag_contains_a_suggestion(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    check_error(argv, "unknown flag --taget; did you mean --target?", capsys)
