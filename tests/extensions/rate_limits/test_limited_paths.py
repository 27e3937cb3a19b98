"""Every route whose requests reach the engine is limited, and no other route is."""

from collections.abc import Iterable, Iterator

import pytest

from app.core.engine.request import EngineRequest, SequenceOutcome, Watch
from app.core.server.http.route import Route
from app.extensions.rate_limits import limits
from app.extensions.rate_limits.limits import LIMITED_PATHS, CallerLimits
from scripts.surface import is_flag
from tests.application import app_of
from tests.present import is_present

FLAGS = (
    "--force-dummy-tokenizer",
    "--enable-cohere-api",
    "--enable-scale-out",
    "--embeddings-with-chat",
    "--vllm-version=0.33",
    "--model=Qwen/Qwen3-0.6B",
    "--tokens-per-minute=1000000",
)
TASKS = ["generate"]
if is_present("pooling"):
    TASKS += ["embed", "classify", "score", "pooling"]


class EveryPath:
    """Contains every path."""

    def __contains__(self, path: object) -> bool:
        return True


@pytest.fixture(name="observed")
def _observed(monkeypatch: pytest.MonkeyPatch) -> list[EngineRequest]:
    """The requests that reached the engine; requests of all paths are observed."""
    requests: list[EngineRequest] = []

    def observe(callers: CallerLimits, caller: bytes, request: EngineRequest) -> Watch:
        requests.append(request)
        return ignore

    monkeypatch.setattr(CallerLimits, "_observe", observe)
    monkeypatch.setattr(limits, "LIMITED_PATHS", EveryPath())
    return requests


def ignore(outcome: SequenceOutcome) -> None:
    """Watches no outcome."""


@pytest.mark.parametrize("task", TASKS)
def test_only_routes_that_use_the_engine_are_rate_limited(
    task: str, observed: list[EngineRequest]
) -> None:
    app = app_of(*filter(is_flag, FLAGS), f"--task={task}")
    client = app.test_client()
    model = client.get("/v1/models").get_json()["data"][0]["id"]
    using_engine: set[str] = set()
    answered: set[str] = set()
    for route in routes_with_bodies(app._routes.values()):
        body = dict(route.docs.example)
        if "model" in body:
            body["model"] = model
        observed.clear()
        answer = client.post(route.path, json=body)
        answer.get_data()
        if observed:
            using_engine.add(route.path)
        if answer.status_code == 200:  # some models reject decisions
            answered.add(route.path)
    assert using_engine
    assert using_engine - LIMITED_PATHS == set()
    assert LIMITED_PATHS & answered == using_engine


def routes_with_bodies(routes: Iterable[Route]) -> Iterator[Route]:
    """Yields the routes for POST that have an example of a body, and change no settings."""
    for route in routes:
        if "POST" in route.methods and not route.path.startswith("/admin/"):
            loaded = route.loaded()
            if loaded.docs.example:
                yield loaded
