"""Answers of mockllm (PyPI: mockllm): YAML with `responses`, a mapping of prompts to replies.

A prompt is compared with the last message of the user, without regard to case. Other prompts
get `defaults.unknown_response`.
"""

from app.extensions.recording.literals import literals
from workbench.imports.imported_script import ImportedScript, Json, mapping

UNKNOWN_RESPONSE = "I don't know the answer to that."
"""The reply to other prompts in a file without `defaults`."""


def is_mockllm(document: object) -> bool:
    """Returns whether a document has the form of mockllm's answers."""
    return isinstance(document, dict) and isinstance(document.get("responses"), dict)


def import_mockllm(document: object, script: ImportedScript) -> None:
    """Adds a rule for each prompt, and one for all others.

    Raises:
        ImportFormatError: the document does not have the form of mockllm's answers.
    """
    file = mapping(document, "the file")
    responses = mapping(file.get("responses"), "responses")
    script.leave_out_unknown("the file", file, ("responses", "defaults"))
    for prompt, reply in responses.items():
        if not isinstance(reply, str):
            script.leave_out(f"responses: {prompt}"[:80], "left out: the reply is not a text")
            continue
        message: Json = {"role": "user", "exact": str(prompt).strip(), "ignore_case": True}
        rule: Json = {"when": {"message": message}, "then": {"text": literals(reply)}}
        script.add_rule(f"responses: {prompt}"[:80], rule)
    defaults = mapping(file.get("defaults") or {}, "defaults")
    script.leave_out_unknown("defaults", defaults, ("unknown_response",))
    unknown = str(defaults.get("unknown_response", UNKNOWN_RESPONSE))
    rule = {"name": "unknown prompt", "when": {}, "then": {"text": literals(unknown)}}
    script.add_rule("defaults", rule)
