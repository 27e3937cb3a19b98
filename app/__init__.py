"""Understudy: a stand-in for vLLM as a WSGI application."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.core.server.flask.application import Understudy
    from config import Settings


def create_app(settings: Settings | None = None) -> Understudy:
    """Builds the application for `settings`, by default the settings of the environment."""
    from app.core import application

    return application.create_app(settings)
