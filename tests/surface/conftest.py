"""Leaves out the page of all settings where an extension was deleted."""

from app.core.built_in import BUILT_IN
from tests.present import is_present

collect_ignore = [] if all(map(is_present, BUILT_IN)) else ["test_option_page.py"]
