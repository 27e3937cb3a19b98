"""Settings of the server: a typed table, read from flags, environment, a YAML file and defaults."""

from config.declaration import ConfigError, UsageError
from config.settings import Settings

__all__ = ["VERSION", "VLLM_VERSION", "ConfigError", "Settings", "UsageError"]

VERSION = "0.1.0"
"""Version of Understudy."""
VLLM_VERSION = "0.32.0"
"""The version of vLLM that the server simulates."""
