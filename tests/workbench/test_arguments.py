"""Wrong arguments of commands end with one line."""

import pytest

from app.core import cli as command
from tests.config.test_command import check_error


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["simluate"], "unknown command 'simluate'; did you mean simulate?"),
        (["simulate", "--rat", "3"], "unknown flag --rat; did you mean --rate?"),
        (["fleet", "--polices", "x"], "unknown flag --polices; did you mean --policies?"),
        (["record", "--out"], "argument --out: expected one argument"),
    ],
)
def test_error_for_a_misspelled_command_or_flag_contains_a_suggestion(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_error(argv, message, capsys)


def test_help_command_prints_the_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["help", "simulate"])
    assert not ended.value.code and "understudy simulate" in capsys.readouterr().out
