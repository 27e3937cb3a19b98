"""Text of tables."""

from collections.abc import Sequence
from textwrap import wrap

MAX_WIDTH = 100
"""Most characters of a line of a table."""
MIN_TEXT_WIDTH = 12
"""Least width of a column of text whose cells are continued in further rows."""


def milliseconds(seconds: float | None) -> str:
    """Returns seconds as text in milliseconds; a dash for None."""
    if seconds is None:
        return "-"
    if seconds * 1000 >= 1000:
        return f"{seconds * 1000:,.0f} ms"
    return f"{seconds * 1000:.1f} ms"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table; the first row is the head, and the first column holds names.

    A table that is wider than `MAX_WIDTH` is divided into tables that each have the names.
    """
    columns = list(zip(*rows, strict=True))
    parts = [[columns[0]]]
    for column in columns[1:]:
        if len(parts[-1]) > 1 and table_width([*parts[-1], column]) > MAX_WIDTH:
            parts.append([columns[0]])
        parts[-1].append(column)
    return "\n\n".join(_table(list(zip(*part, strict=True))) for part in parts)


def wrap_last_column(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns rows whose last cells are continued in further rows, so that the table fits.

    Where little space remains, `markdown` moves the column into a separate table.
    """
    columns = list(zip(*rows, strict=True))
    available = MAX_WIDTH - table_width([*columns[:-1], ("",)])
    if available < MIN_TEXT_WIDTH:
        return [list(row) for row in rows]
    wrapped = []
    for row in rows:
        lines = wrap(row[-1], available) or [""]
        wrapped.append([*row[:-1], lines[0]])
        wrapped += [[*[""] * (len(row) - 1), line] for line in lines[1:]]
    return wrapped


def table_width(columns: Sequence[Sequence[str]]) -> int:
    """Returns the width of a table, in characters."""
    return 1 + sum(3 + max(map(len, column)) for column in columns)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    ruler = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    head, *body = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ruler, *body))
