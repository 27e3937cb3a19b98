"""What the commands of `python -m app` have in common: how they read flags, and say what is wrong."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import NoReturn

from config import ConfigError


class Parser(argparse.ArgumentParser):
    """Tells what is wrong as the server's own flags do, by ConfigError."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Reads whole numbers of a range."""
    told = f"a whole number from {least} on" if most is None else f"a whole number from {least} to {most}"

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or not least <= int(text) <= (most or math.inf):
            raise argparse.ArgumentTypeError(f"{text!r} must be {told}")
        return int(text)

    return read
