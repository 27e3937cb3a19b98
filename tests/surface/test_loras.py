"""Adapters come and go while the server runs."""

from typing import Any

from tests.client import MODEL, Client, in_process


def names(client: Client) -> list[str]:
    return [card["id"] for card in client.get("/v1/models").json()["data"]]


def error(answer: Any) -> tuple[int, str, str | None]:
    told = answer.json()["error"]
    assert told["code"] == answer.status_code
    return answer.status_code, told["type"], told["param"]


def test_an_adapter_serves_as_a_model_from_its_loading_to_its_unloading(client: Client) -> None:
    base, first = client.get("/v1/models").json()["data"][:2]
    assert (base["id"], base["parent"], base["max_model_len"]) == (MODEL, None, 32_768)
    assert (first["id"], first["root"], first["parent"]) == ("first", "/adapters/first", MODEL)
    assert first["max_model_len"] is None
    body = {"lora_name": "second", "lora_path": "/adapters/second"}
    loaded = client.post("/v1/load_lora_adapter", body)
    assert (loaded.status_code, loaded.headers.get("content-type")) == (200, None)
    assert names(client) == [MODEL, "first", "second"]
    assert client.chat(model="second", max_tokens=2)["model"] == "second"
    assert client.complete(model="second")["model"] == "second"
    assert client.post("/v1/unload_lora_adapter", {"lora_name": "second"}).status_code == 200
    gone = client.post("/v1/completions", {"model": "second", "prompt": "Hello"})
    assert error(gone) == (404, "NotFoundError", "model")
    client.complete(model="first")
    assert client.metric("vllm:lora_requests_info", running_lora_adapters="first", max_lora="2") > 0


def test_an_adapter_is_loaded_once_unless_it_is_replaced(client: Client) -> None:
    body = {"lora_name": "first", "lora_path": "/elsewhere"}
    assert error(client.post("/v1/load_lora_adapter", body)) == (400, "InvalidUserInput", None)
    assert client.post("/v1/load_lora_adapter", {**body, "load_inplace": True}).status_code == 200
    assert client.get("/v1/models").json()["data"][1]["root"] == "/elsewhere"
    back = {"lora_name": "first", "lora_path": "/adapters/first", "load_inplace": True}
    assert client.post("/v1/load_lora_adapter", back).status_code == 200


def test_what_cannot_be_loaded_or_unloaded(client: Client) -> None:
    invalid = (400, "InvalidUserInput", None)
    for path, body, wrong in (
        ("load", {"lora_name": "", "lora_path": "x"}, invalid),
        ("load", {"lora_name": "x", "lora_path": ""}, invalid),
        ("load", {"lora_name": MODEL, "lora_path": "x"}, invalid),
        ("load", {"lora_name": "x"}, (400, "Bad Request", "body.lora_path")),
        ("load", {}, (400, "Bad Request", "body.lora_name")),
        ("load", [], (400, "Bad Request", "body")),
        ("unload", {"lora_name": "nobody"}, (404, "NotFoundError", None)),
        ("unload", {"lora_name": ""}, invalid),
        ("unload", {}, (400, "Bad Request", "body.lora_name")),
        (
            "unload",
            {"lora_name": "first", "lora_int_id": 1.5},
            (400, "Bad Request", "body.lora_int_id"),
        ),
    ):
        assert error(client.post(f"/v1/{path}_lora_adapter", body)) == wrong, body


def test_adapters_come_and_go_in_sagemakers_words(client: Client) -> None:
    body = {"name": "third", "src": "/adapters/third"}
    assert client.post("/adapters", body).status_code == 200
    assert names(client)[-1] == "third"
    assert error(client.post("/adapters", body)) == (400, "InvalidUserInput", None)
    assert error(client.post("/adapters", {"name": "x"})) == (400, "Bad Request", None)
    assert client.delete("/adapters/third").status_code == 200
    assert error(client.delete("/adapters/third")) == (404, "NotFoundError", None)


def test_routers_see_where_adapters_are_and_none_leaves_the_api_for_another() -> None:
    flags = ("--lora-modules", "a=/a", "b=/b", "--max-loras", "1", "--max-cpu-loras", "2")
    with in_process("--lora-residency-metrics", "--allow-runtime-lora-updating", *flags) as client:
        for used, level in (("a", "gpu"), ("b", "cpu")):
            client.complete(model=used)
            assert (
                client.metric("vllm:lora_adapter_loaded", adapter_name="a", level=level, rank="16")
                == 1
            )
        assert client.metric("vllm:lora_adapter_load_seconds_count", transition="load") == 2
        body = {"lora_name": "c", "lora_path": "/c"}
        assert client.post("/v1/load_lora_adapter", body).status_code == 200
        assert names(client) == [MODEL, "a", "b", "c"]
        for name in "abca":
            assert client.complete(model=name)["model"] == name
