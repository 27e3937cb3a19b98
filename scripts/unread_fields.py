"""The sections of docs/limits.md about fields of requests and parsers without a reader.

`tests/extensions/test_readers_of_fields.py` proves that the lists are complete and that no entry
has a reader.
"""

from collections.abc import Mapping

from app.core.engine.sampling import SIMULATED_FIELDS, Sampling
from app.extensions.grpc.messages import engine
from app.extensions.tool_calls.settings import READ_PARSERS
from scripts.generated_page import DOCS, table
from vllm_facts.facts import OPTIONS

LIMITS_PAGE = DOCS / "limits.md"
START = "<!-- made: unread -->"
END = "<!-- end -->"

UNREAD: Mapping[str, str] = {
    "return_mm_kwargs": "Older form of `mm_payload`; text-only models return no tensors.",
    "session_id": "Pins a session to a cache tier; the simulated cache has no sessions.",
    "spaces_between_special_tokens": "Joins special tokens without spaces in slow tokenizers only.",
    "user": "Ignored by vLLM, too.",
    "watermarking": "Marks sampled tokens; simulated texts are not sampled.",
}
"""Fields of chats and completions that nothing reads, and what vLLM does with them."""

DRAWN = "Changes the probabilities of tokens; simulated texts are drawn without a model."
NO_FIELD = "vLLM's protobuf does not have the field."
PROTOBUF_FIELDS = {field.name for field in engine.SamplingParams.DESCRIPTOR.fields}
SERVED_WITHOUT: Mapping[str, Mapping[str, str]] = {
    "simulated engine": {
        "presence_penalty": DRAWN,
        "frequency_penalty": DRAWN,
        "repetition_penalty": DRAWN,
        "top_p": DRAWN,
        "top_k": DRAWN,
        "min_p": DRAWN,
        "bad_words": DRAWN,
        "skip_special_tokens": "Hides special tokens; simulated texts have none but the end.",
    },
    "real engine": dict.fromkeys(SIMULATED_FIELDS, "Status 400."),
    "gRPC": {name: NO_FIELD for name in Sampling.__struct_fields__ if name not in PROTOBUF_FIELDS},
}
"""Sampling parameters that one of the readers leaves out, and what vLLM does with them."""


def parsers_without_reader() -> list[str]:
    """Returns the tool call parsers of vLLM whose format is read as that of Hermes models."""
    option = OPTIONS["tool-call-parser"]
    return sorted({*option.names, *option.later} - {*READ_PARSERS})


def limits_page() -> str:
    """Returns docs/limits.md: the present text with new sections."""
    rows = [(f"`{name}`", "all", reason) for name, reason in UNREAD.items()]
    for reader, fields in SERVED_WITHOUT.items():
        rows += [(f"`{name}`", reader, reason) for name, reason in fields.items()]
    parsers = ", ".join(f"`{name}`" for name in parsers_without_reader())
    sections = [
        "## Fields without effect\n\nThese fields of requests are validated, and then have no "
        f"effect:\n\n{table(('field', 'where', 'vLLM'), rows)}",
        "## Tool call parsers without a reader\n\nWith these parsers, the server starts with a "
        f"warning.\n\n{table(('read instead', 'tool-call-parser'), [('`hermes`', parsers)])}",
    ]
    text = "\n\n".join(sections)
    head, start, tail = LIMITS_PAGE.read_text("utf-8").partition(START)
    _, end, foot = tail.partition(END)
    return f"{head}{start}\n{text}\n\n{end}{foot}"
