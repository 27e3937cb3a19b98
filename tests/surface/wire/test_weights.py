"""The routes of trainers and of elastic scaling: status, bodies, and what a session of updates refuses."""

from __future__ import annotations

from tests.surface.conftest import Client


def test_over_http(client: Client) -> None:
    assert client.post("/update_weight_version", {"new_version": "http"}).json()["success"]
    assert client.get("/weight_info").json() == {"weight_version": "http"}
    client.post("/update_weight_version", {"new_version": "default"})
