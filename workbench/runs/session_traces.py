"""Mooncake's rows with sessions, as AIPerf replays them.

Rows with the same `session_id` are turns of a conversation. The row of a turn has only its new
tokens. The client sends the whole conversation, `delay` milliseconds after the previous reply.
Prompts may be texts, in `text_input` or `messages`, instead of lengths. LMCache's agentic traces
have the whole conversation in `input`, and the delay in seconds in `pre_gap`.
"""

from array import array
from collections.abc import Callable, Iterable

from msgspec import Struct

from config import ConfigError
from workbench.load.loads import ROWS_PER_PROGRESS, LoadTrace
from workbench.runs.json_rows import Json
from workbench.runs.row_values import read_block_ids, read_moment
from workbench.runs.text_tokens import estimated_tokens
from workbench.runs.trace_builder import TraceBuilder, TraceRow

WHOLE_PROMPT = "input"
"""Field of LMCache's agentic traces with the messages of the whole conversation."""
SESSION_KEYS = frozenset(("session_id", "delay", "text_input", "messages", "pre_gap"))
"""Keys of rows that only these traces have."""
PROMPTS = ("text_input", "messages", WHOLE_PROMPT)
LENGTHS = ("input_length", "output_length")


class Turn(Struct):
    """A row of a trace."""

    place: str
    row: Json


def read_session_trace(
    rows: Iterable[tuple[str, Json]],
    load: LoadTrace,
    block_tokens: int | None,
    report_progress: Callable[[], None],
) -> None:
    """Reads rows with sessions; a row without one is a whole conversation.

    Raises:
        ConfigError: A row is wrong; the message has file, row and rule.
    """
    sessions: dict[str, list[Turn]] = {}
    for number, (place, row) in enumerate(rows, 1):
        name = row.get("session_id")
        if name is not None and not isinstance(name, str | int):
            raise ConfigError(f"{load.origin}, {place}: session_id must be a text")
        key = f"row {number}" if name is None else f"session {name}"
        sessions.setdefault(key, []).append(Turn(place, row))
        if not number % ROWS_PER_PROGRESS:
            report_progress()
    starts = {name: _start_s(turns[0], load) for name, turns in sessions.items()}
    reader = _SessionReader(load, block_tokens)
    for name in sorted(sessions, key=starts.__getitem__):
        reader.add(sessions[name], starts[name])
    reader.finish()


def _start_s(turn: Turn, load: LoadTrace) -> float:
    """Returns the time of the first turn; without one, a conversation begins at 0 s."""
    moment = turn.row.get("timestamp")
    if moment is None:
        return 0.0
    try:
        return read_moment("timestamp", moment, "ms")
    except ValueError as error:
        raise ConfigError(f"{load.origin}, {turn.place}: {error}") from None


class _SessionReader:
    """Appends conversations to a load, in the order of their starts."""

    def __init__(self, load: LoadTrace, block_tokens: int | None) -> None:
        self._load = load
        self._builder = TraceBuilder(load, block_tokens)
        self._sessions = array("i")
        self._think_s = array("d")
        self._count = 0

    def add(self, turns: Iterable[Turn], start_s: float) -> None:
        """Adds the turns of a conversation.

        Raises:
            ConfigError: A row is wrong.
        """
        load = self._load
        history_tokens = 0
        first = len(load)
        for turn in turns:
            size = len(load)
            try:
                think_s = read_moment("delay", turn.row.get("delay") or 0, "ms")
                think_s += read_moment("pre_gap", turn.row.get("pre_gap") or 0, "s")
                row = _row_of(turn.row, start_s, history_tokens, is_first=size == first)
                self._builder.add(row, LENGTHS)
            except ValueError as error:
                raise ConfigError(f"{load.origin}, {turn.place}: {error}") from None
            if len(load) == size:
                continue  # the turn failed
            history_tokens = load.input_tokens[-1] + load.output_tokens[-1]
            self._sessions.append(self._count)
            self._think_s.append(0.0 if size == first else think_s)
        self._count += 1

    def finish(self) -> None:
        """Completes the load. A later turn has the shared prefix of its conversation.

        Raises:
            ConfigError: The blocks do not fit the lengths of the prompts.
        """
        load = self._load
        try:
            self._builder.finish()
        except ValueError as error:
            raise ConfigError(f"{load.origin}, {error}") from None
        if len(set(self._sessions)) == len(load):
            return
        load.session = self._sessions
        load.think_s = self._think_s
        if not load.group:
            return
        for number in range(1, len(load)):
            if load.session[number] == load.session[number - 1]:
                load.group[number] = load.group[number - 1]
                load.prefix_tokens[number] = load.prefix_tokens[number - 1]


def _row_of(row: Json, start_s: float, history_tokens: int, is_first: bool) -> TraceRow:
    """Returns a turn with the tokens of the conversation so far.

    Raises:
        ValueError: A value is wrong.
    """
    tokens = row.get("input_length")
    if tokens is None:
        tokens = _tokens_of_texts(row)
    if WHOLE_PROMPT in row:
        history_tokens = 0
    if isinstance(tokens, int | float) and not isinstance(tokens, bool) and tokens > 0:
        tokens += history_tokens
    return TraceRow(
        arrival_s=start_s,
        input_tokens=tokens,
        output_tokens=row.get("output_length"),
        block_ids=read_block_ids("hash_ids", row.get("hash_ids")) if is_first else (),
    )


def _tokens_of_texts(row: Json) -> int | None:
    """Returns the estimated length of a prompt of texts; None for a row without a prompt."""
    return estimated_tokens([row.get(name) for name in PROMPTS]) or None
