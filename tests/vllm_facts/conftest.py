"""What the tests of vLLM's command line share with those of the settings."""

from tests.config.conftest import yaml_file

__all__ = ["yaml_file"]
