"""LMCache's configuration file, which the variable LMCACHE_CONFIG_FILE names, as settings."""

from __future__ import annotations

from config.declaration import ConfigError
from config.yaml_file import parse_yaml


def lmcache_fallbacks(path: str) -> dict[str, str]:
    """Returns the settings of LMCacheConnectorV1 in the file, as texts.

    A sender copies each prompt to its peer; a receiver listens at the port of the peer.

    Raises:
        ConfigError: The file cannot be read, or is not a mapping.
    """
    content = parse_yaml(path, has_all_numbers=True)
    if not isinstance(content, dict):
        raise ConfigError(f"YAML file {path} must contain a mapping")
    fallbacks: dict[str, str] = {}
    if content.get("chunk_size"):
        fallbacks["lmcache-chunk-size"] = str(content["chunk_size"])
    role = content.get("nixl_role") or content.get("pd_role")
    port = content.get("nixl_peer_port") or content.get("pd_peer_init_port")
    if isinstance(port, list) and port:
        port = port[0]
    host = content.get("nixl_peer_host")
    if role == "receiver" and port:
        fallbacks["kv-side-channel-port"] = str(port)
    if role == "sender" and host and port:
        fallbacks["lmcache-receiver"] = f"{host}:{port}"
    return fallbacks
