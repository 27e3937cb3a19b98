"""The document of each release since 0.10 has the fields of that vLLM (vllm_facts/history.json)."""

import pytest

from app.core.versions.shape import schemas_of
from app.core.versions.structs import structs_in
from tests.application import app_of
from vllm_facts.history import read_history
from vllm_facts.version import DESCRIBED, PATCHES

FLAGS = ("--force-dummy-tokenizer", "--server-dev-mode", "true", "--enable-scale-out", "true")
HISTORY = read_history()


@pytest.mark.parametrize("version", PATCHES)
def test_document_has_the_fields_of_the_release(version: str) -> None:
    app = app_of(*FLAGS, "--vllm-version", version)
    components = app.test_client().get("/openapi.json").get_json()["components"]["schemas"]
    types = [
        kind
        for route in app.routes
        for kind in (*route.loaded().docs.body, route.loaded().docs.answer)
        if kind is not None
    ]
    compared = 0
    for kind in structs_in(types):
        for schema in schemas_of(kind):
            newest = HISTORY.fields(schema, PATCHES[DESCRIBED[-1]])
            present = HISTORY.fields(schema, PATCHES[version])
            if present and kind.__name__ in components:
                shown = components[kind.__name__].get("properties", {}).keys()
                assert shown & newest <= present
                assert present - newest <= shown
                compared += 1
    assert compared > 5
