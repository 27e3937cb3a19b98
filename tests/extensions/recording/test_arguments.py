"""Wrong arguments of the recording proxy end with one line."""

import pytest

from tests.config.test_command import check_error


def test_error_for_a_misspelled_record_flag_contains_a_suggestion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["record", "--proxy", "--taget", "x"]
    check_error(argv, "unknown flag --taget; did you mean --target?", capsys)
