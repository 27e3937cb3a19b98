"""MultiConnector: a connector with handoffs and one with a store."""

import json
from typing import Any

import msgspec
import pytest

from app.core.application import create_app
from app.core.protocol.common import KVTransferParams
from app.core.settings import resolve, settings_type
from app.extensions.handoff import Handoff
from app.extensions.handoff.lmcache import CachedTokensAnswer, FirstTokenAnswer
from app.extensions.handoff.settings import HandoffSettings
from app.extensions.handoff.union import union_of
from config import Settings
from tests.callbacks import ignore
from tests.running_server import free_port
from vllm_facts.serve import settings_of

PROMPT = list(range(100, 148))
"""Three blocks."""
NIXL_FIELDS = list(KVTransferParams.__struct_fields__)


def settings_for(*names: str, flags: tuple[str, ...] = ()) -> Settings:
    parts = [{"kv_connector": name, "kv_role": "kv_both"} for name in names]
    config = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": parts},
    }
    options = ["tiny", *flags, "--kv-transfer-config", json.dumps(config)]
    return resolve(settings_of(options, {}, settings_type()), {}, ignore)


@pytest.mark.parametrize(
    ("names", "connector", "store"),
    [
        (("NixlConnector", "OffloadingConnector"), "nixl", "offloading"),
        (("LMCacheConnectorV1", "NixlPushConnector"), "nixl-push", "lmcache"),
        (("MooncakeConnector", "DecodeBenchConnector", "ExampleConnector"), "mooncake", "example"),
        (("NixlConnector", "MoRIIOConnector"), "nixl", ""),
        (("LMCacheMPConnector", "OffloadingConnector"), "lmcache-mp", ""),
        (("DecodeBenchConnector",), "", ""),
    ],
)
def test_multi_connector_uses_the_first_transfer_and_store_connectors(
    names: tuple[str, ...], connector: str, store: str
) -> None:
    settings = settings_for(*names)
    assert settings.kvcache.kv_connector == connector
    assert settings.section(HandoffSettings).kv_store == store
    assert Handoff.is_enabled(settings) is bool(connector)


def test_combined_transfer_parameters_have_the_fields_of_each_connector() -> None:
    nixl = KVTransferParams(
        remote_block_ids=((1,),),
        remote_engine_id="e",
        remote_request_id="r",
        remote_host="pod",
        remote_port=5600,
        remote_num_tokens=9,
    )
    union = union_of(nixl, FirstTokenAnswer(first_tok=7))
    assert list(msgspec.to_builtins(union)) == [*NIXL_FIELDS, "first_tok"]
    assert msgspec.to_builtins(union_of(nixl, CachedTokensAnswer())) == msgspec.to_builtins(nixl)
    assert union_of(nixl, None) is nixl
    assert msgspec.to_builtins(union_of(None, CachedTokensAnswer())) == {}
    assert union_of(None, None) is None


def answers(app: Any, **params: Any) -> Any:
    """The `kv_transfer_params` of an answer of one token."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": params}
    answer = app.test_client().post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.get_json()["kv_transfer_params"]


@pytest.mark.parametrize(
    ("store", "params", "fields"),
    [
        (
            "LMCacheMPConnector",
            {"num_lmcache_extra_cached_tokens": True},
            {"num_lmcache_extra_cached_tokens"},
        ),
        ("LMCacheMPConnector", {}, set()),
        ("LMCacheConnectorV1", {"ret_first_tok": True}, {"first_tok"}),
        ("LMCacheConnectorV1", {}, set()),
        ("OffloadingConnector", {}, set()),
    ],
    ids=str,
)
def test_prefill_returns_the_transfer_parameters_of_all_connectors(
    store: str, params: dict[str, object], fields: set[str]
) -> None:
    flags = (
        "--force-dummy-tokenizer",
        "--kv-side-channel-host=127.0.0.1",
        f"--kv-side-channel-port={free_port()}",
    )
    app = create_app(settings_for("NixlConnector", store, flags=flags))
    try:
        answer = answers(app, do_remote_decode=True, **params)
    finally:
        app.end()
    assert set(answer) == {*NIXL_FIELDS, *fields}
    assert all(answer[name] is not None for name in fields)
    assert answer["remote_engine_id"]
