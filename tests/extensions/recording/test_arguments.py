"""Wrong arguments of the recording proxy end with one line."""

import pytest

from tests.config.test_command import check_error


def test_wrong_arguments_end_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["record", "--proxy", "--taget", "x"]
    check_error(argv, "unknown flag --taget; did you mean --target?", capsys)
