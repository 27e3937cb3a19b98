"""A server with a script, which serves the models of its rules."""

from pathlib import Path
from typing import Any

import yaml

from app import create_app
from app.core.settings import load


def client_with_script(script: Path) -> Any:
    """A client of a server with a script."""
    rules = yaml.safe_load(script.read_text())["rules"]
    models = {rule["when"]["model"] for rule in rules if "model" in rule.get("when", {})}
    flags = ["--force-dummy-tokenizer", "--script", str(script)]
    if models:
        flags += ["--served-model-name", *sorted(models)]
    return create_app(load(flags, {})).test_client()
