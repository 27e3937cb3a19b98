"""The surface of a server:

settings, commands, routes, middleware, random streams and metric families.
"""

import json

from scripts.surface import SURFACE_FILE, surface


def test_the_surface_is_the_stored_one() -> None:
    """After an intended change: python -m scripts.surface --write."""
    stored = json.loads(SURFACE_FILE.read_text("utf-8"))
    assert surface() == stored
