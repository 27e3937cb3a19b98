"""Rows of traces in CSV: those of this project, of Azure and of BurstGPT."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from workbench.load.loads import COLUMNS, NO_GROUP, SESSION_COLUMNS, LoadTrace
from workbench.runs.images import COLUMN as IMAGE_COLUMN
from workbench.runs.images import read_images
from workbench.runs.row_values import (
    has_failed,
    is_missing,
    read_seconds,
    read_tokens,
    read_utc_seconds,
)
from workbench.runs.trace_kinds import unknown_trace

PREFIX_COLUMNS = ("prefix_group", "prefix_tokens")
CLASS_COLUMN = "class"
MAX_THINK_S = 1e9


PUBLIC_COLUMNS: Mapping[tuple[str, ...], Callable[[str, str], float]] = {
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): read_utc_seconds,
    ("Timestamp", "Request tokens", "Response tokens"): read_seconds,
}
"""Columns of time, prompt and answer tokens, and how to read a time.

The first entry fits the traces of Azure, whose times have seven digits and no zone (2023) or six
digits and a zone (2024). The second entry fits BurstGPT.
"""


class UnknownTraceError(ValueError):
    """A file has the columns of no known trace; the message names the file."""


class CsvRows:
    """Checks the rows of a CSV file, and appends each to a load."""

    def __init__(self, load: LoadTrace, names: Sequence[str]) -> None:
        """`names` are the names of the columns.

        Raises:
            ValueError: Columns are missing, or named twice.
        """
        self._load = load
        self._columns: Sequence[str] = COLUMNS
        self._read_time: Callable[[str, str], float] = read_seconds
        self.is_public = False
        """True for a public trace, whose rows may be out of order and without tokens."""
        for columns, read_time in PUBLIC_COLUMNS.items():
            if set(columns) <= set(names):
                self._columns = columns
                self._read_time = read_time
                self.is_public = True
                break
        if not set(self._columns) & set(names):
            raise UnknownTraceError(unknown_trace(load.origin, filter(None, names)))
        prefix_columns = self._optional(PREFIX_COLUMNS, names)
        session_columns = self._optional(SESSION_COLUMNS, names)
        class_columns = self._optional((CLASS_COLUMN,), names)
        image_columns = self._optional((IMAGE_COLUMN,), names)
        optional = chain(prefix_columns, session_columns, class_columns, image_columns)
        required = [*self._columns, *optional]
        for name in required:
            if names.count(name) != 1:
                problem = "twice" if name in names else "missing"
                raise ValueError(
                    f"column {name} is {problem}; the required columns are {', '.join(required)}"
                )
        self._column_indexes = [names.index(name) for name in self._columns]
        self._prefix_indexes = [names.index(name) for name in prefix_columns]
        self._session_indexes = [names.index(name) for name in session_columns]
        self._class_indexes = [names.index(name) for name in class_columns]
        self._image_indexes = [names.index(name) for name in image_columns]
        self._min_width = max(map(names.index, required)) + 1
        self.classes: dict[str, int] = {}
        """Numbers of the classes."""
        self._groups: dict[str, int] = {}
        """Numbers of the groups."""
        self._latest_turns: dict[str, int] = {}
        """Number of the latest request of each session."""
        self._failed_arrivals: dict[str, str] = {}
        """Arrivals of sessions whose first turn failed."""
        self._arrival_s = 0.0

    def _optional(self, columns: Sequence[str], names: Sequence[str]) -> Sequence[str]:
        """Returns `columns` if the file has at least one such column; public traces have none."""
        if self.is_public or not any(name in names for name in columns):
            return ()
        return columns

    def read(self, row: Sequence[str]) -> None:
        """Appends a row to the load. Raises ValueError with the rule that the row breaks.

        A blank row is skipped, and a request without tokens counts as left out: it failed.
        """
        load = self._load
        if not any(map(str.strip, row)):
            return
        if len(row) < self._min_width:
            raise ValueError(f"the row has {len(row)} fields, but more are required")
        time_text, input_text, output_text = (row[index] for index in self._column_indexes)
        if has_failed(input_text) or has_failed(output_text):
            load.left_out += 1
            self._keep_arrival(row, time_text)
            return
        earlier_turn = self._read_session(row) if self._session_indexes else None
        if earlier_turn is None:
            self._read_arrival(time_text, row)
        input_tokens = read_tokens(self._columns[1], input_text)
        output_tokens = read_tokens(self._columns[2], output_text)
        shared_tokens = 0
        if earlier_turn is not None:
            shared_tokens = load.input_tokens[earlier_turn] + load.output_tokens[earlier_turn]
            if input_tokens < shared_tokens:
                raise ValueError(
                    f"input_tokens {input_tokens} must not be less than the"
                    f" {shared_tokens} tokens of the conversation so far"
                )
        if self._prefix_indexes:
            self._read_prefix(row, input_tokens, earlier_turn)
            shared_tokens = max(shared_tokens, load.prefix_tokens[-1])
        if self._image_indexes:
            images = read_images(row[self._image_indexes[0]], input_tokens, shared_tokens)
            load.images.append(images)
        if self._class_indexes:
            self._read_class(row)
        load.input_tokens.append(input_tokens)
        load.output_tokens.append(output_tokens)
        load.arrival_s.append(self._arrival_s)

    def _keep_arrival(self, row: Sequence[str], text: str) -> None:
        """Keeps the arrival of a first turn that failed: the next turn of its session has none."""
        if self._session_indexes and not is_missing(text):
            name = row[self._session_indexes[0]].strip()
            self._failed_arrivals.setdefault(name, text)

    def _read_arrival(self, text: str, row: Sequence[str]) -> None:
        if self._session_indexes and is_missing(text):
            text = self._failed_arrivals.get(row[self._session_indexes[0]].strip(), text)
            if not is_missing(text) and read_seconds(self._columns[0], text) < self._arrival_s:
                return  # sent with the request before
        arrival_s = self._read_time(self._columns[0], text)
        if arrival_s < self._arrival_s and not self.is_public:
            raise ValueError(f"arrival_s {text} is earlier than the arrival_s of the previous row")
        self._arrival_s = arrival_s

    def _read_session(self, row: Sequence[str]) -> int | None:
        """Returns the number of the turn that this one follows; None for a first turn."""
        load = self._load
        name, think_text = (row[index].strip() for index in self._session_indexes)
        earlier_turn = self._latest_turns.get(name)
        think_s = 0.0
        session = len(self._latest_turns)
        if earlier_turn is not None:
            think_s = read_seconds(SESSION_COLUMNS[1], think_text, MAX_THINK_S)
            session = load.session[earlier_turn]
        load.think_s.append(think_s)
        if name:
            load.session.append(session)
            self._latest_turns[name] = len(load)
        else:
            load.session.append(NO_GROUP)
        return earlier_turn

    def _read_class(self, row: Sequence[str]) -> None:
        name = row[self._class_indexes[0]].strip()
        if not name:
            raise ValueError(f"{CLASS_COLUMN} is empty")
        self._load.kind.append(self.classes.setdefault(name, len(self.classes)))

    def _read_prefix(self, row: Sequence[str], input_tokens: int, earlier_turn: int | None) -> None:
        """Stores the shared prefix; that of a later turn is that of its conversation."""
        load = self._load
        group, tokens_text = (row[index].strip() for index in self._prefix_indexes)
        prefix_tokens = read_tokens(PREFIX_COLUMNS[1], tokens_text, 0) if group else 0
        if prefix_tokens > input_tokens:
            raise ValueError(
                f"prefix_tokens {prefix_tokens} must not exceed input_tokens {input_tokens}"
            )
        number = NO_GROUP
        if prefix_tokens:
            number = self._groups.setdefault(group, len(self._groups))
        if earlier_turn is not None:
            number = load.group[earlier_turn]
            prefix_tokens = load.prefix_tokens[earlier_turn]
        load.group.append(number)
        load.prefix_tokens.append(prefix_tokens)
