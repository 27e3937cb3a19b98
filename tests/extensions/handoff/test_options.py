"""`--kv-transfer-config` with MooncakeConnector and MoRIIOConnector."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.core.settings import load, resolve, settings_type
from app.extensions.handoff import Handoff
from app.extensions.handoff.settings import HandoffSettings
from config import Settings
from config.declaration import ConfigError
from tests.callbacks import ignore
from vllm_facts.serve import settings_of


def settings_for(**config: Any) -> Settings:
    options = ["tiny", "--kv-transfer-config", json.dumps(config)]
    flags = settings_of(options, {}, settings_type())
    return resolve(flags, {}, ignore)


def test_mooncake_connector_config_sets_the_role_and_the_failure_policy() -> None:
    settings = settings_for(
        kv_connector="MooncakeConnector",
        kv_role="kv_consumer",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"num_workers": 10},
    )
    assert settings.kvcache.kv_connector == "mooncake"
    assert settings.kvcache.kv_load_failure_policy == "recompute"
    assert settings.section(HandoffSettings).kv_role == "kv_consumer"
    assert Handoff.is_enabled(settings)


def test_moriio_connector_reads_its_ports_and_router_address() -> None:
    settings = settings_for(
        kv_connector="MoRIIOConnector",
        kv_role="kv_producer",
        kv_connector_extra_config={
            "proxy_ip": "10.0.0.5",
            "proxy_ping_port": 36367,
            "http_port": 8000,
            "handshake_port": 6400,
            "notify_port": 61_010,
            "read_mode": True,
        },
    )
    options = settings.section(HandoffSettings)
    assert settings.kvcache.kv_connector == "moriio"
    assert settings.kvcache.kv_side_channel_port == 61_010
    assert options.moriio_proxy == "tcp://10.0.0.5:36367"
    assert (options.moriio_handshake_port, options.moriio_read_mode) == (6400, True)


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer", "kv_both"])
def test_moriio_connector_defaults_to_the_ports_of_vllm(role: str) -> None:
    settings = settings_for(kv_connector="MoRIIOConnector", kv_role=role)
    options = settings.section(HandoffSettings)
    assert settings.kvcache.kv_side_channel_port == 61_005
    assert (options.moriio_handshake_port, options.moriio_proxy) == (6301, "")
    assert not options.moriio_read_mode


@pytest.mark.parametrize(
    "address", ["router:36367", "tcp://router", "tcp://router:x", "tcp://router:70000"]
)
def test_router_address_that_is_not_a_zmq_address_is_rejected(address: str) -> None:
    with pytest.raises(ValueError, match="moriio-proxy"):
        load(["--kv-connector", "moriio", "--moriio-proxy", address], {})


def offloading(**tier: Any) -> Settings:
    return settings_for(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 1,
            "secondary_tiers": [{"type": "fs", "root_dir": "/kv"}, tier],
        },
    )


def test_p2p_tier_of_an_offloading_connector_sets_the_side_channel_address() -> None:
    settings = offloading(type="p2p", host="10.0.0.7", port=5720)
    assert settings.kvcache.kv_connector == "p2p"
    assert settings.kvcache.kv_side_channel_host == "10.0.0.7"
    assert settings.kvcache.kv_side_channel_port == 5720
    assert Handoff.is_enabled(settings)


def test_p2p_tier_without_an_address_uses_the_default_of_vllm() -> None:
    settings = offloading(type="p2p")
    assert settings.kvcache.kv_side_channel_host == "localhost"
    assert settings.kvcache.kv_side_channel_port == 5710


def test_offloading_connector_without_a_p2p_tier_has_no_peers() -> None:
    settings = offloading(type="obj")
    assert settings.kvcache.kv_connector == "offloading"
    assert not Handoff.is_enabled(settings)


def test_push_connector_keeps_the_engine_id_from_its_config() -> None:
    settings = settings_for(
        kv_connector="NixlPushConnector", kv_role="kv_producer", engine_id="prefill-1"
    )
    assert settings.kvcache.kv_connector == "nixl-push"
    assert settings.section(HandoffSettings).kv_engine_id == "prefill-1"


def lmcache(path: Path, text: str) -> Settings:
    """The settings of an LMCacheConnectorV1 with a configuration file."""
    file = path / "lmcache.yaml"
    file.write_text(text, "utf-8")
    config = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_producer"}
    options = ["tiny", "--kv-transfer-config", json.dumps(config)]
    environ = {"LMCACHE_CONFIG_FILE": str(file)}
    return resolve(settings_of(options, environ, settings_type()), environ, ignore)


def test_lmcache_sender_reads_its_receiver_from_the_config_file(tmp_path: Path) -> None:
    text = "nixl_role: sender\nnixl_peer_host: localhost\nnixl_peer_port: 55555\nchunk_size: 64\n"
    options = lmcache(tmp_path, text).section(HandoffSettings)
    assert (options.lmcache_receiver, options.lmcache_chunk_size) == ("localhost:55555", 64)
    assert options.kv_role == "kv_producer"


@pytest.mark.parametrize(
    "text",
    [
        "nixl_role: receiver\nnixl_peer_host: localhost\nnixl_peer_port: 55555\n",
        "pd_role: receiver\npd_peer_init_port: [55555]\n",
    ],
)
def test_lmcache_receiver_reads_its_port_from_the_config_file(tmp_path: Path, text: str) -> None:
    settings = lmcache(tmp_path, text)
    assert settings.kvcache.kv_side_channel_port == 55_555
    assert settings.section(HandoffSettings).lmcache_receiver == ""


@pytest.mark.parametrize("receiver", ["pod:65535", "10.0.0.1:1", ""])
def test_lmcache_receiver_may_be_empty_or_a_host_with_a_port(
    receiver: str,
) -> None:
    settings = load(("--model", "m", f"--lmcache-receiver={receiver}"))
    assert settings.section(HandoffSettings).lmcache_receiver == receiver


@pytest.mark.parametrize("receiver", ["pod:65536", "pod:70000", "pod:0", "pod", ":80", "pod:x"])
def test_lmcache_receiver_without_a_valid_port_is_rejected(receiver: str) -> None:
    with pytest.raises(ConfigError, match="lmcache-receiver"):
        load(("--model", "m", f"--lmcache-receiver={receiver}"))


@pytest.mark.parametrize("text", ["- 5", "a: [", "chunk_size: many"])
def test_invalid_lmcache_config_file_is_rejected(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="lmcache.yaml|lmcache-chunk-size"):
        lmcache(tmp_path, text)
