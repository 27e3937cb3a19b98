"""Adapters come and go while the server runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.client import MODEL, Client, in_process


def names(client: Client) -> list[str]:
    return [card["id"] for card in client.get("/v1/models").json()["data"]]


def error(answer: Any) -> tuple[int, str, str | None]:
    error_body = answer.json()["error"]
    assert error_body["code"] == answer.status_code
    return answer.status_code, error_body["type"], error_body["param"]


def test_adapter_is_served_as_a_model_until_it_is_unloaded(client: Client) -> None:
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


def test_adapter_is_loaded_once_unless_load_inplace_is_set(client: Client) -> None:
    body = {"lora_name": "first", "lora_path": "/elsewhere"}
    assert error(client.post("/v1/load_lora_adapter", body)) == (400, "InvalidUserInput", None)
    assert client.post("/v1/load_lora_adapter", {**body, "load_inplace": True}).status_code == 200
    assert client.get("/v1/models").json()["data"][1]["root"] == "/elsewhere"
    back = {"lora_name": "first", "lora_path": "/adapters/first", "load_inplace": True}
    assert client.post("/v1/load_lora_adapter", back).status_code == 200


def test_invalid_adapter_requests_return_the_errors_of_vllm(client: Client) -> None:
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


def test_sagemaker_adapter_routes_load_and_unload_adapters(client: Client) -> None:
    body = {"name": "third", "src": "/adapters/third"}
    assert client.post("/adapters", body).status_code == 200
    assert names(client)[-1] == "third"
    assert error(client.post("/adapters", body)) == (400, "InvalidUserInput", None)
    assert error(client.post("/adapters", {"name": "x"})) == (400, "Bad Request", None)
    assert client.delete("/adapters/third").status_code == 200
    assert error(client.delete("/adapters/third")) == (404, "NotFoundError", None)


def test_residency_metrics_show_which_adapters_are_loaded() -> None:
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


def adapter_folder(folder: Path, **fields: Any) -> str:
    config = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], **fields}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"r": 17}, "LoRA rank 17 is greater than max_lora_rank 16"),
        ({"rank_pattern": {"q_proj": 32}}, "LoRA rank 32 is greater"),
        ({"use_dora": True}, "does not yet support DoRA"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"modules_to_save": ["score", "lm_head"]}, "Unsupported modules_to_save: ['lm_head']"),
        ({"r": "eight"}, "could not be loaded"),
        ({"r": 0}, "must be a positive integer, got 0"),
        ({"lora_alpha": None}, "could not be loaded"),
        ({"rank_pattern": {"q_proj": "32"}}, "could not be loaded"),
        ({"rank_pattern": [1]}, "could not be loaded"),
        ({"modules_to_save": "score"}, "Unsupported modules_to_save: ['s', 'c', 'o', 'r', 'e']"),
        ({"modules_to_save": [["score"]]}, "Unsupported modules_to_save: [['score']]"),
        ({"use_bdlora": {"a": 1}}, "BD-LoRA"),
        ({"use_bdlora": True}, "BD-LoRA"),
        ({"bias": None}, "Adapter bias is not supported"),
    ],
)
def test_loading_an_adapter_that_vllm_cannot_load_returns_500(
    client: Client, tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    path = adapter_folder(tmp_path, **fields)
    answers = [
        client.post("/v1/load_lora_adapter", {"lora_name": "unfit", "lora_path": path}),
        client.post("/adapters", {"name": "unfit", "src": path}),
    ]
    for answer in answers:
        assert error(answer) == (500, "InternalServerError", None)
        assert words in answer.json()["error"]["message"]
    assert "unfit" not in names(client)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"r": 16},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": None},
        {"modules_to_save": ["score"]},
        {"modules_to_save": False},
        {"target_modules": None},
        {"target_modules": {"q_proj": 1}},
        {"use_bdlora": False, "use_dora": None, "layer_replication": 0, "rank_pattern": []},
    ],
)
def test_valid_adapter_folder_is_loaded(
    client: Client, tmp_path: Path, fields: dict[str, Any]
) -> None:
    body = {"lora_name": "fit", "lora_path": adapter_folder(tmp_path, **fields)}
    answer = client.post("/v1/load_lora_adapter", body)
    assert answer.text == "Success: LoRA adapter 'fit' added successfully."
    twice = client.post("/v1/load_lora_adapter", body)
    assert "has already been loaded" in twice.json()["error"]["message"]
    answer = client.post("/v1/unload_lora_adapter", {"lora_name": "fit"})
    assert answer.text == "Success: LoRA adapter 'fit' removed successfully."


def test_missing_adapter_files_are_rejected_if_require_lora_files_is_set(tmp_path: Path) -> None:
    flags = ("--require-lora-files", "--allow-runtime-lora-updating")
    with in_process(*flags) as client:
        body = {"lora_name": "a", "lora_path": "/not/an/adapter"}
        missing = client.post("/v1/load_lora_adapter", body)
        assert error(missing) == (404, "NotFoundError", None)
        assert "No adapter found for /not/an/adapter" in missing.json()["error"]["message"]
        body["lora_path"] = adapter_folder(tmp_path)
        assert client.post("/v1/load_lora_adapter", body).status_code == 200
