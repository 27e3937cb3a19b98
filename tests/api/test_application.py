"""What the application leaves out of Flask, nothing of ours needs."""

from __future__ import annotations

import pytest

from app.factory import create_app
from config.declaration import ConfigError
from config.loader import load

EVERYTHING = (
    *("--kv-index", "--enable-kvcache", "--zmq-endpoint", "", "--allowed-origins", "*"),
    *("--allow-runtime-lora-updating", "--server-dev-mode", "--profiling", "--enable-request-id-headers"),
    *("--enable-scale-out", "--enable-responses-store", "--requests-per-minute", "100", "--api-key", "k"),
    *("--otlp-traces-endpoint", "http://127.0.0.1:4318/v1/traces", "--console"),
)


@pytest.mark.parametrize("flags", [(), EVERYTHING, ("--role", "indexer"), ("--task", "embed")])
def test_only_the_application_has_hooks(flags: tuple[str, ...]) -> None:
    """`FlaskApplication` runs those of the application, and none of blueprints and of teardown."""
    app = create_app(load(flags, {})).flask
    assert set(app.before_request_funcs) <= {None}
    assert set(app.after_request_funcs) <= {None}
    for unused in (app.teardown_request_funcs, app.teardown_appcontext_funcs, app.url_value_preprocessors):
        assert not unused


def test_hooks_run_in_flasks_order() -> None:
    app = create_app(load((), {})).flask
    ran: list[str] = []

    @app.before_request
    def first() -> None:
        ran.append("first")

    @app.before_request
    def second() -> str:
        ran.append("second")
        return "an answer"

    app.before_request(lambda: ran.append("never"))

    @app.after_request
    def last(response: object) -> object:
        ran.append("last")
        return response

    @app.after_request
    def last_but_one(response: object) -> object:
        ran.append("last but one")
        return response

    assert app.test_client().get("/health").text == "an answer"
    assert ran == ["first", "second", "last but one", "last"]


@pytest.mark.parametrize("address", ["somewhere", "tcp://*", "tcp://*:x", "http://a:1"])
def test_an_index_that_cannot_listen_anywhere_stops_the_start(address: str) -> None:
    with pytest.raises(ConfigError, match="kv-index-bind"):
        load(("--role", "indexer", "--kv-index-bind", address), {})


def test_an_index_of_pods_that_are_nowhere_stops_the_start() -> None:
    with pytest.raises(SystemExit, match="kv-index-pods"):
        create_app(load(("--role", "indexer", "--kv-index-pods", "tcp://a:0"), {}))
