"""The list of models, as vLLM writes it (vllm-api.md section 2)."""

from __future__ import annotations

from typing import Any

from app.factory import create_app
from config.loader import load

PERMISSION = {
    **{"object": "model_permission", "organization": "*", "group": None, "is_blocking": False},
    **{"allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True},
    **{"allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False},
}


def cards(*flags: str) -> list[dict[str, Any]]:
    answer = create_app(load(flags, {})).test_client().get("/v1/models").json
    assert answer is not None and answer["object"] == "list"
    listed: list[dict[str, Any]] = answer["data"]
    return listed


def test_a_model_is_a_card_with_one_permission() -> None:
    [card] = cards("--model", "org/base", "--max-model-len", "2048")
    [permission] = card.pop("permission")
    created = card.pop("created")
    assert permission.pop("id").startswith("modelperm-") and permission.pop("created") == created > 1e9
    assert permission == PERMISSION
    assert card == {
        **{"id": "org/base", "object": "model", "owned_by": "vllm", "root": "org/base"},
        **{"parent": None, "max_model_len": 2048},
    }


def test_every_served_name_and_every_adapter_has_a_card() -> None:
    adapter = '{"name": "sql", "path": "/adapters/sql", "base_model_name": "base"}'
    listed = cards("--model", "base", "--served-model-name", "a", "b", "--lora-modules", adapter)
    assert [(card["id"], card["root"], card["parent"]) for card in listed] == [
        ("a", "base", None),
        ("b", "base", None),
        ("sql", "/adapters/sql", "a"),
    ]
