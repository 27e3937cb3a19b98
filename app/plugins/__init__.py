"""Public names for plugins: see `app.extensions.plugins.api`."""

from app.extensions.plugins.api import *  # noqa: F403
from app.extensions.plugins.api import __all__ as __all__
