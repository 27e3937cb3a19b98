"""Reads the settings of media: limits of items, and sizes."""

import re
from collections.abc import Mapping

from config.sections.api import json_object

SIDES = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", re.ASCII)
"""Width and height in pixels."""
DEFAULT_LIMIT = 999
"""Maximum items of a modality in a prompt, as in vLLM."""
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "image": ("width", "height"),
    "audio": ("length",),
    "video": ("num_frames", "width", "height"),
}
"""Fields beside `count`: the largest item for which vLLM reserves memory."""


def read_sides(text: str) -> tuple[int, int] | None:
    """Returns the width and height in a text such as 1024x768; None for another text."""
    match = SIDES.fullmatch(text)
    if match is None:
        return None
    return int(match[1]), int(match[2])


def item_limits(text: str) -> dict[str, int]:
    """Parses `--limit-mm-per-prompt`: the maximum items by modality.

    Raises:
        ValueError: vLLM would not start with the text.
    """
    limits: dict[str, int] = {}
    for modality, value in json_object(text).items():
        if isinstance(value, dict):
            names = ("count", *DIMENSIONS.get(modality, ()))
            for name, number in value.items():
                if name not in names:
                    raise ValueError(f"{modality}: unknown field {name!r}")
                if type(number) is not int or number < (name != "count"):
                    raise ValueError(f"{modality}.{name} must be a positive number")
            value = value.get("count", DEFAULT_LIMIT)
        if type(value) is not int or value < 0:
            raise ValueError(f"{modality} must be a number of at least 0")
        limits[modality] = value
    return limits
