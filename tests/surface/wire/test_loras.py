"""Adapters come and go while the server runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.surface.conftest import MODEL, Client, served


def names(client: Client) -> list[str]:
    return [card["id"] for card in client.get("/v1/models").json()["data"]]


def error(answer: Any) -> tuple[int, str, str | None]:
    told = answer.json()["error"]
    assert told["code"] == answer.status_code
    return answer.status_code, told["type"], told["param"]


def test_an_adapter_of_the_start_is_listed_behind_the_base_model(client: Client) -> None:
    base, first = client.get("/v1/models").json()["data"][:2]
    assert (base["id"], base["parent"], base["max_model_len"]) == (MODEL, None, 32_768)
    assert (first["id"], first["root"], first["parent"]) == ("first", "/adapters/first", MODEL)
    assert first["max_model_len"] is None


def test_an_adapter_serves_as_a_model_from_its_loading_to_its_unloading(client: Client) -> None:
    body = {"lora_name": "second", "lora_path": "/adapters/second"}
    loaded = client.post("/v1/load_lora_adapter", body)
    assert (loaded.status_code, loaded.headers.get("content-type")) == (200, None)
    assert names(client) == [MODEL, "first", "second"]
    assert client.chat(model="second", max_tokens=2)["model"] == "second"
    assert client.complete(model="second")["model"] == "second"
    assert client.post("/v1/unload_lora_adapter", {"lora_name": "second"}).status_code == 200
    gone = client.post("/v1/completions", {"model": "second", "prompt": "Hello"})
    assert error(gone) == (404, "NotFoundError", "model")


def test_an_adapter_is_loaded_once_unless_it_is_replaced(client: Client) -> None:
    body = {"lora_name": "first", "lora_path": "/elsewhere"}
    assert error(client.post("/v1/load_lora_adapter", body)) == (400, "InvalidUserInput", None)
    assert client.post("/v1/load_lora_adapter", {**body, "load_inplace": True}).status_code == 200
    assert client.get("/v1/models").json()["data"][1]["root"] == "/elsewhere"
    back = {"lora_name": "first", "lora_path": "/adapters/first", "load_inplace": True}
    assert client.post("/v1/load_lora_adapter", back).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "wrong"),
    [
        ("load", {"lora_name": "", "lora_path": "x"}, (400, "InvalidUserInput", None)),
        ("load", {"lora_name": "x", "lora_path": ""}, (400, "InvalidUserInput", None)),
        ("load", {"lora_name": MODEL, "lora_path": "x"}, (400, "InvalidUserInput", None)),
        ("load", {"lora_name": "x"}, (400, "Bad Request", "body.lora_path")),
        ("load", {}, (400, "Bad Request", "body.lora_name")),
        ("load", [], (400, "Bad Request", "body")),
        ("unload", {"lora_name": "nobody"}, (404, "NotFoundError", None)),
        ("unload", {"lora_name": ""}, (400, "InvalidUserInput", None)),
        ("unload", {}, (400, "Bad Request", "body.lora_name")),
        ("unload", {"lora_name": "first", "lora_int_id": 1.5}, (400, "Bad Request", "body.lora_int_id")),
    ],
)
def test_what_cannot_be_loaded_or_unloaded(client: Client, path: str, body: Any, wrong: Any) -> None:
    assert error(client.post(f"/v1/{path}_lora_adapter", body)) == wrong


def test_adapters_come_and_go_in_sagemakers_words(client: Client) -> None:
    body = {"name": "third", "src": "/adapters/third"}
    assert client.post("/adapters", body).status_code == 200
    assert names(client)[-1] == "third"
    assert error(client.post("/adapters", body)) == (400, "InvalidUserInput", None)
    assert error(client.post("/adapters", {"name": "x"})) == (400, "Bad Request", None)
    third = client.server.url + "/adapters/third"
    assert client.session.delete(third, timeout=20).status_code == 200
    assert error(client.session.delete(third, timeout=20)) == (404, "NotFoundError", None)


def test_the_metric_tells_of_adapters(client: Client) -> None:
    client.complete(model="first")
    assert client.metric("vllm:lora_requests_info", running_lora_adapters="first", max_lora="2") > 0


def test_no_adapter_leaves_the_api_for_another() -> None:
    modules = ("--lora-modules", "a=/a", "b=/b")
    with served("--max-cpu-loras", "1", "--allow-runtime-lora-updating", *modules) as client:
        body = {"lora_name": "c", "lora_path": "/c"}
        assert client.post("/v1/load_lora_adapter", body).status_code == 200
        assert names(client) == [MODEL, "a", "b", "c"]
        for name in "abca":
            assert client.complete(model=name)["model"] == name


def test_routers_see_where_adapters_are() -> None:
    flags = ("--lora-modules", "a=/a", "b=/b", "--max-loras", "1", "--max-cpu-loras", "2")
    with served("--lora-residency-metrics", *flags) as client:
        for used, level in (("a", "gpu"), ("b", "cpu")):
            client.complete(model=used)
            assert client.metric("vllm:lora_adapter_loaded", adapter_name="a", level=level, rank="16") == 1
        assert client.metric("vllm:lora_adapter_load_seconds_count", transition="load") == 2
    with served(*flags) as client:
        assert "loaded_lora_adapters" not in client.get("/metrics").text


def test_without_the_setting_there_is_no_such_route() -> None:
    with served() as client:
        answer = client.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "y"})
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
        assert "lora_requests_info" not in client.get("/metrics").text


@pytest.mark.parametrize(
    ("modules", "line"),
    [
        (['{"name":"a","base_model_name":"another"}'], "is for another model, 'another'"),
        (['{"path":"a"}'], "is no adapter"),
        (['{"name":""}'], "has no name"),
        (["{"], "is no adapter"),
        (["base=x"], "is a name of the base model"),
        (["foo"], "is no adapter"),
        (["a=b,c=d"], "is no adapter"),
    ],
)
def test_a_wrong_module_stops_the_start(modules: list[str], line: str) -> None:
    with pytest.raises(RuntimeError) as caught, served("--lora-modules", *modules):
        pass
    assert "setting lora-modules:" in str(caught.value)
    assert line in str(caught.value)
