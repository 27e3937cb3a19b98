"""Leaves out what is compared with the whole surface where an extension was deleted."""

from app.core.built_in import BUILT_IN
from tests.present import is_present

COMPLETE = ["test_control_routes.py", "test_surface.py"]
"""Files whose tests need all extensions."""
collect_ignore = [] if all(map(is_present, BUILT_IN)) else COMPLETE
