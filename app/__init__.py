"""Understudy: a stand-in for vLLM as a WSGI application."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.serving.flask.application import Understudy
    from config import Settings


def create_app(settings: Settings | None = None) -> Understudy:
    """Builds the application for `settings`, by default for the environment's; see
    `app.wiring.factory`.
    """
    from app.wiring import factory

    return factory.create_app(settings)
