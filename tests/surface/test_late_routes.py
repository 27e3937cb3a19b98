"""Every route that is imported late can be loaded, and is the declared one."""

import pytest

from app.core.server.http.late_routes import LateRoute
from scripts.surface import CONFIGURATIONS, is_flag
from tests.application import app_of

EXTRAS = {"every feature": [pytest.mark.grpc, pytest.mark.tracing]}
"""Configuration -> what it needs beside the package."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=EXTRAS.get(name, [])) for name in CONFIGURATIONS]
)
def test_each_lazily_loaded_route_has_its_declared_methods_and_path(name: str) -> None:
    app = app_of(*filter(is_flag, CONFIGURATIONS[name]))
    late = [route for route in app.routes if isinstance(route, LateRoute)]
    assert len(late) > 10
    for route in late:
        loaded = route.loaded()
        assert (loaded.methods, loaded.path) == (route.methods, route.path)
        assert loaded.handle.__doc__
