"""The servers that receive the requests for each model."""

from collections.abc import Iterable

from app.shared.http_client import Target
from config import ConfigError


def targets_by_model(items: Iterable[str]) -> dict[str, Target]:
    """Reads items, each a URL or model=URL; the model "" is for all others.

    Raises:
        ConfigError: a URL is not valid, or two targets have the same models.
    """
    targets: dict[str, Target] = {}
    for item in items:
        model, equals, url = item.partition("=")
        if not equals or "://" in model:
            model = ""
            url = item
        if model in targets:
            raise ConfigError(
                f"target {item.rpartition('@')[2]}: another target serves the same models"
            )
        targets[model] = Target.from_url(url)
    return targets
