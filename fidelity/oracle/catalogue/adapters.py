"""LoRA adapters: loading and unloading, and requests to them."""

from fidelity.oracle.cases import MODEL, REMOVED, Area
from fidelity.oracle.catalogue.requests import (
    CHAT,
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    COMPLETIONS,
    MESSAGES,
    QUESTION,
)
from fidelity.oracle.configurations import ADAPTER_FOLDER

LOAD = "/v1/load_lora_adapter"
UNLOAD = "/v1/unload_lora_adapter"
AREA = Area("adapters", configuration="lora")


def _load(name: str, reason: str, body: dict[str, object]) -> None:
    merged = {"lora_name": "second", "lora_path": str(ADAPTER_FOLDER), **body}
    fields = {field: value for field, value in merged.items() if value is not REMOVED}
    words = ("Success", "already been loaded", "(?i)not found", "must be provided")
    AREA.case(f"load {name}", reason, path=LOAD, body=fields, words=words)


def _unload(name: str, reason: str, body: dict[str, object]) -> None:
    words = ("Success", "cannot be found", "must be provided")
    AREA.case(f"unload {name}", reason, path=UNLOAD, body=body, words=words)


AREA.get("/v1/models", "Adapters are models.")
AREA.get("/v1/models/first", "Adapters are models.")
for name, path, fields in (
    ("chat", CHAT, CHAT_FIELDS),
    ("completion", COMPLETIONS, COMPLETION_FIELDS),
    ("message", MESSAGES, {"max_tokens": 3, "messages": QUESTION}),
    ("tokenize", "/tokenize", {"prompt": "Hi"}),
):
    AREA.case(
        f"{name} with an adapter",
        "The model of the answer is the adapter.",
        path=path,
        body={**fields, "model": "first"},
    )
AREA.case(
    "chat with an unknown adapter", "404.", path=CHAT, body={**CHAT_FIELDS, "model": "second"}
)
_load("a second one", "It is there at once.", {})
AREA.get("/v1/models", "The new adapter is listed.", "GET /v1/models with a second one")
AREA.case(
    "chat with the second adapter",
    "It answers.",
    path=CHAT,
    body={**CHAT_FIELDS, "model": "second"},
)
_load("it again", "It is already loaded.", {})
_load("it in place", "A new version replaces the old one.", {"load_inplace": True})
_load("the name of the model", "Names are unique.", {"lora_name": MODEL})
_load("a folder that does not exist", "404.", {"lora_name": "third", "lora_path": "/none"})
_load("without a name", "The name is required.", {"lora_name": REMOVED})
_load("without a path", "The path is required.", {"lora_path": REMOVED})
_load("an empty name", "The name is required.", {"lora_name": ""})
_load("an empty path", "The path is required.", {"lora_path": ""})
_load("a number as a name", "Types are checked.", {"lora_name": 5})
_load("an unknown field", "It is ignored.", {"lora_name": "fourth", "mood": "good"})
_unload("the fourth", "Its name is free.", {"lora_name": "fourth"})
_unload("the second", "Its name is free.", {"lora_name": "second"})
_unload("it again", "It is not there.", {"lora_name": "second"})
_unload("an empty name", "The name is required.", {"lora_name": ""})
_unload("without a name", "The name is required.", {})
_unload("with a number", "The number is ignored.", {"lora_name": "none", "lora_int_id": 1})
AREA.case(
    "chat with an unloaded adapter", "404.", path=CHAT, body={**CHAT_FIELDS, "model": "second"}
)
AREA.get("/metrics", "Families of adapters.")
AREA.case(
    "priority",
    "A server with priorities accepts them.",
    path=CHAT,
    body={**CHAT_FIELDS, "priority": 5},
)
AREA.case(
    "negative priority",
    "A server with priorities accepts them.",
    path=CHAT,
    body={**CHAT_FIELDS, "priority": -5},
)
AREAS = (AREA,)
