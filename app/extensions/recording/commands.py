"""Commands that make recordings, compare them, and convert them to scripts."""

from collections.abc import Mapping

from app.core.extensions import Command, late_command

COMMANDS: Mapping[str, Command] = {
    "record --proxy": late_command(
        f"{__package__}.proxy", "record the exchanges with a real server"
    ),
    "drift": late_command(f"{__package__}.drift", "compare a recording with a live server"),
    "fork": late_command(
        f"{__package__}.fork", "cut a recorded session, to continue it in another way"
    ),
    "script from-recording": late_command(
        f"{__package__}.to_script", "make a script from a recording"
    ),
}
