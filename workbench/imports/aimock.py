"""Fixtures of aimock (npm: @copilotkit/aimock 1.43): a JSON object with the list `fixtures`.

The first fixture that matches answers, as the first rule does. Texts are searched in the message,
`sequenceIndex` counts matches from 0, and several fixtures may have the same match.
"""

import json

from app.extensions.recording.exchange_rules import (
    REPLAYED_FINISHES,
    USUAL_FINISHES,
    usage_of,
)
from app.extensions.recording.literals import literals
from config.untrusted import INVALID
from workbench.imports.imported_script import (
    ImportedScript,
    ImportFormatError,
    Json,
    is_number,
    items,
    mapping,
    milliseconds,
    text,
)
from workbench.imports.replies import (
    compact_json,
    error_action,
    tool_call,
)

FIXTURE_KEYS = (
    "match",
    "response",
    "latency",
    "streamingProfile",
    "recordedTimings",
    "truncateAfterChunks",
    "chaos",
)
MATCH_KEYS = (
    "userMessage",
    "systemMessage",
    "inputText",
    "toolCallId",
    "toolResultContains",
    "toolName",
    "model",
    "sequenceIndex",
    "turnIndex",
    "hasToolResult",
    "endpoint",
    "context",
)
RESPONSE_KEYS = (
    "content",
    "toolCalls",
    "blocks",
    "reasoning",
    "finishReason",
    "usage",
    "error",
    "status",
    "retryAfter",
    "embedding",
)
CHAOS_FAULTS: dict[str, Json] = {
    "dropRate": {"action": "error", "status": 500},
    "malformedRate": {"action": "malformed-chunk"},
    "rateLimitRate": {"action": "error", "status": 429, "retry_after": 1},
    "disconnectRate": {"action": "disconnect", "after": 1},
}
"""Failures with a probability; a rule can have one."""
DEFAULT_ERROR_STATUS = 500
ERROR_DEFAULTS: Json = {"type": "server_error", "code": None}
RATE_LIMITED = 429
"""The status whose responses have the header Retry-After."""
CONTEXT_HEADER = "x-aimock-context"
MAX_RETRY_AFTER_S = 86_400


def is_aimock(document: object) -> bool:
    """Returns whether a document has the form of aimock's fixtures or of its configuration."""
    if not isinstance(document, dict):
        return False
    llm = document.get("llm")
    return isinstance(document.get("fixtures"), list) or (
        isinstance(llm, dict) and "fixtures" in llm
    )


def import_aimock(document: object, script: ImportedScript) -> None:
    """Adds a rule for each fixture.

    Raises:
        ImportFormatError: the document is a configuration, or has no list of fixtures.
    """
    file = mapping(document, "the file")
    if "fixtures" not in file and "llm" in file:
        path = mapping(file["llm"], "llm").get("fixtures")
        raise ImportFormatError(
            f"is an aimock configuration; import its fixtures from {path} instead"
        )
    fixtures = items(file.get("fixtures"), "fixtures")
    script.leave_out_unknown("the file", file, ("fixtures",))
    numbered: list[tuple[int, int, Json]] = []
    for number, entry in enumerate(fixtures, 1):
        place = f"fixture {number}"
        try:
            fixture = mapping(entry, place)
            rule = _rule(script, place, fixture)
            position = _position(mapping(fixture["match"], place))
        except ImportFormatError as error:
            script.leave_out(place, f"left out: {error}")
            continue
        except INVALID:
            script.leave_out(place, "left out: not a fixture of aimock 1.43")
            continue
        if rule is not None:
            numbered.append((number, position, rule))
    for rule in _in_sequence(numbered):
        script.add_rule(rule["name"], rule)


def _position(match: Json) -> int:
    """Returns the position of a fixture among those with the same match."""
    for key in ("sequenceIndex", "turnIndex"):
        if is_number(match.get(key)):
            return int(match[key])
    return -1


def _in_sequence(numbered: list[tuple[int, int, Json]]) -> list[Json]:
    """Sorts the rules of each sequence by their positions, within the places that they have."""
    by_conditions: dict[str, list[tuple[int, int, Json]]] = {}
    for entry in numbered:
        key = json.dumps(entry[2]["when"], sort_keys=True)
        by_conditions.setdefault(key, []).append(entry)
    placed: dict[int, Json] = {}
    for entries in by_conditions.values():
        places = [number for number, _, _ in entries]
        members = [(position, number) for number, position, _ in entries if position >= 0]
        rules = {number: rule for number, _, rule in entries}
        ordered = [number for _, number in sorted(members)]
        ordered += [number for number, position, _ in entries if position < 0]
        for place, number in zip(places, ordered, strict=True):
            placed[place] = rules[number]
    return [placed[number] for number in sorted(placed)]


def _rule(script: ImportedScript, place: str, fixture: Json) -> Json | None:
    match = mapping(fixture.get("match"), "match")
    response = mapping(fixture.get("response"), "response")
    endpoint = match.get("endpoint", "chat")
    if endpoint not in ("chat", "embedding"):
        script.leave_out(place, f"left out: endpoint {endpoint}")
        return None
    action = _action_of(script, place, response)
    if action is None:
        return None
    script.leave_out_unknown(place, fixture, FIXTURE_KEYS)
    script.leave_out_unknown(f"{place}: match", match, MATCH_KEYS)
    when = _when(script, place, match)
    _add_delays(script, place, fixture, action)
    _add_fault(script, place, fixture, action)
    return {"name": place, "when": when, "then": action}


def _when(script: ImportedScript, place: str, match: Json) -> Json:
    when: Json = {}
    if match.get("model"):
        when["model"] = str(match["model"])
    if "inputText" in match or match.get("endpoint") == "embedding":
        when["api"] = "embeddings"
    messages = _messages(match)
    if len(messages) == 1:
        when["message"] = messages[0]
    elif messages:
        when["message"] = messages
    if "context" in match:
        when["headers"] = {CONTEXT_HEADER: str(match["context"])}
    if match.get("toolName"):
        when["tools"] = str(match["toolName"])
    result = _tool_result(match)
    if result is not None:
        when["tool_result"] = result
    if "turnIndex" in match:
        script.leave_out(place, "turnIndex only orders the replies to equal requests")
    return when


def _messages(match: Json) -> list[Json]:
    """Returns the conditions on messages."""
    messages: list[Json] = []
    for key in ("userMessage", "inputText"):
        if key in match:
            messages.append({"role": "user", "contains": str(match[key])})
    texts = match.get("systemMessage", [])
    if not isinstance(texts, list):
        texts = [texts]
    for part in texts:
        messages.append({"role": "system", "which": "any", "contains": str(part)})
    return messages


def _tool_result(match: Json) -> bool | Json | None:
    """Returns the condition on the results of tools."""
    result: Json = {}
    if "toolCallId" in match:
        result["call_id"] = str(match["toolCallId"])
    if "toolResultContains" in match:
        result["contains"] = str(match["toolResultContains"])
    if result:
        return result
    has_result = match.get("hasToolResult")
    return has_result if isinstance(has_result, bool) else None


def _action_of(script: ImportedScript, place: str, response: Json) -> Json | None:
    """Returns the action for a response; None for one that is left out."""
    script.leave_out_unknown(f"{place}: response", response, RESPONSE_KEYS)
    if "error" in response:
        return _error(script, place, response)
    action: Json = {}
    if "embedding" in response:
        vector = items(response["embedding"], "embedding")
        action["embedding"] = [float(number) for number in vector]
        if not vector:
            raise ImportFormatError("the embedding is empty")
        return action
    texts, calls = _parts(script, place, response)
    if response.get("reasoning"):
        action["reasoning"] = literals(text(response["reasoning"], "reasoning"))
    if texts:
        action["text"] = literals("".join(texts))
    if calls:
        action["tool_calls"] = calls
    if not action:
        script.leave_out(place, "left out: no text, tool call, error, or embedding")
        return None
    _add_end(script, place, response, action)
    return action


def _add_end(script: ImportedScript, place: str, response: Json, action: Json) -> None:
    """Adds the finish reason and the usage of a reply."""
    finish = response.get("finishReason") or ""
    if finish in REPLAYED_FINISHES:
        action["finish_reason"] = finish
    elif finish not in USUAL_FINISHES:
        script.leave_out(place, f"finishReason {finish} left out")
    usage = usage_of(response.get("usage"))
    if usage:
        action["usage"] = usage


def _parts(script: ImportedScript, place: str, response: Json) -> tuple[list[str], list[Json]]:
    """Returns the texts and the tool calls of a response."""
    texts = []
    content = response.get("content")
    if content is not None:
        if not isinstance(content, str):
            content = compact_json(content)
        texts.append(content)
    calls = [tool_call(call) for call in response.get("toolCalls") or ()]
    blocks = response.get("blocks") or ()
    if not blocks:
        return texts, calls
    texts = [text(block["text"], "text") for block in blocks if block["type"] == "text"]
    call_blocks = [block for block in blocks if block["type"] == "toolCall"]
    if call_blocks and texts and blocks[-1]["type"] == "text":
        script.leave_out(place, "order of blocks left out: texts come before tool calls")
    return texts, [tool_call(block) for block in call_blocks]


def _error(script: ImportedScript, place: str, response: Json) -> Json:
    status = response.get("status", DEFAULT_ERROR_STATUS)
    error = mapping(response["error"], "error")
    text(error.get("message"), "error.message")
    action = error_action(script, place, status, {**ERROR_DEFAULTS, **error})
    if status == RATE_LIMITED:
        retry_after = response.get("retryAfter", 1)
        if is_number(retry_after):
            action["fault"]["retry_after"] = min(int(retry_after), MAX_RETRY_AFTER_S)
    return action


def _add_delays(script: ImportedScript, place: str, fixture: Json, action: Json) -> None:
    delays: Json = {}
    if is_number(fixture.get("latency")):
        delays["per_token"] = milliseconds(fixture["latency"] / 1e3)
    profile = mapping(fixture.get("streamingProfile") or {}, "streamingProfile")
    if is_number(profile.get("ttft")):
        delays["first_token"] = milliseconds(profile["ttft"] / 1e3)
    if is_number(profile.get("tps")) and profile["tps"] > 1e-3:
        delays["per_token"] = milliseconds(1 / profile["tps"])
    script.leave_out_unknown(f"{place}: streamingProfile", profile, ("ttft", "tps"))
    timings = fixture.get("recordedTimings") or {}
    if is_number(timings.get("ttftMs")):
        delays["first_token"] = milliseconds(timings["ttftMs"] / 1e3)
    gaps = [gap for gap in timings.get("interChunkDelaysMs") or () if is_number(gap)]
    if gaps:
        delays["per_token"] = milliseconds(sum(gaps) / len(gaps) / 1e3)
    chaos = fixture.get("chaos") or {}
    if is_number(chaos.get("latencyMs")):
        delays["first_token"] = milliseconds(chaos["latencyMs"] / 1e3)
    if delays and "embedding" not in action:
        action["delays"] = delays


def _add_fault(script: ImportedScript, place: str, fixture: Json, action: Json) -> None:
    """Adds the first failure of a fixture; a rule has at most one."""
    faults: list[Json] = []
    if is_number(fixture.get("truncateAfterChunks")):
        after = int(fixture["truncateAfterChunks"])
        faults.append({"action": "disconnect", "after": after, "streams_only": True})
    chaos = fixture.get("chaos") or {}
    for key, fault in CHAOS_FAULTS.items():
        if is_number(chaos.get(key)) and chaos[key] > 0:
            faults.append({**fault, "probability": min(1.0, chaos[key])})
    script.leave_out_unknown(f"{place}: chaos", chaos, (*CHAOS_FAULTS, "latencyMs"))
    if not faults:
        return
    if "fault" not in action:
        action["fault"] = faults.pop(0)
    for fault in faults:
        script.leave_out(place, f"a second failure left out: {fault['action']}")
