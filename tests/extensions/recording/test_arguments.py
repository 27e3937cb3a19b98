"""Wrong arguments of the recording proxy end with one line."""

import pytest

from tests.config.test_command import check_error


def test_invalid_arguments_print_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["record", "--proxy", "--taget", "x"]
    check_error(argv, "unknown flag --taget; did you mean --target?", capsys)
