"""Callbacks for tests that do not read the values."""


def ignore(*values: object) -> None:
    """Takes any values, such as progress or warnings, and does nothing."""
