"""Asks a real vLLM for the HTTP status of schemas; runs in the environment of `fidelity.oracle`.

    .oracle/0.32.0/environment/bin/python fidelity/judge_schemas/ask_vllm.py schemas.jsonl statuses.jsonl

Each line of the first file is ``{"id": ..., "schema": ...}``; lines of the second one have a
``status`` besides. No server and no model are needed: the script runs vLLM's validation, and then
xgrammar's compiler, as the engine does. The status is 0 if that takes more than two minutes.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

MAX_SECONDS = 120


class SlowError(Exception):
    """The schema takes too long."""


def status_of(schema: object, compiler: Any) -> int:
    """Returns the status of a request whose reply must satisfy `schema`."""
    import vllm.v1.structured_output.backend_guidance as guidance
    import vllm.v1.structured_output.backend_outlines as outlines
    import vllm.v1.structured_output.backend_xgrammar as xgrammar
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams

    params = SamplingParams()
    try:
        params.structured_outputs = StructuredOutputsParams(json=schema)
    except ValueError:
        return 400
    try:
        try:
            xgrammar.validate_xgrammar_grammar(params)
        except (VLLMValidationError, ValueError):
            if guidance.has_guidance_unsupported_json_features(schema):
                outlines.validate_structured_output_request_outlines(params)
            else:
                guidance.validate_guidance_grammar(params, tokenizer=None)
    except VLLMValidationError:
        return 400
    except ValueError:  # of 0.27, which answers it with 500
        return 500
    try:
        compiler.compile_json_schema(json.dumps(schema), any_whitespace=True)
    except RuntimeError:
        return 500
    return 200


def new_compiler() -> Any:
    """Returns the compiler of a vocabulary of single bytes; no schema depends on the vocabulary."""
    import xgrammar  # type: ignore[import-not-found]

    vocabulary = [bytes([byte]) for byte in range(256)]
    tokenizer = xgrammar.TokenizerInfo([*vocabulary, b"<end>"], stop_token_ids=[256])
    return xgrammar.GrammarCompiler(tokenizer, max_threads=1, cache_enabled=False)


def timed_status(line: Mapping[str, object], compiler: Any) -> int:
    """Returns the status, or 0 if a part of the work takes too long."""
    signal.alarm(MAX_SECONDS)
    try:
        return status_of(line["schema"], compiler)
    except SlowError:
        return 0
    finally:
        signal.alarm(0)


def main() -> None:
    """Appends the statuses to the second file as they are found."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

    def stop(number: int, frame: FrameType | None) -> None:
        raise SlowError

    signal.signal(signal.SIGALRM, stop)
    compiler = new_compiler()
    source, target = map(Path, sys.argv[1:])
    with target.open("a", encoding="utf-8") as statuses:
        for text in source.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            line["status"] = timed_status(line, compiler)
            statuses.write(json.dumps(line) + "\n")
            statuses.flush()


if __name__ == "__main__":
    main()
