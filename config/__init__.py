"""Settings of the server: a typed table, read from flags, environment, a YAML file and defaults."""

from config.declaration import ConfigError, UsageError
from config.settings import Settings

__all__ = ["VERSION", "ConfigError", "Settings", "UsageError"]

VERSION = "0.1.0"
"""Version of Understudy."""
