"""Text of tables."""

from collections.abc import Sequence


def milliseconds(seconds: float | None) -> str:
    """Returns seconds as text in milliseconds; a dash for None."""
    if seconds is None:
        return "-"
    if seconds * 1000 >= 1000:
        return f"{seconds * 1000:,.0f} ms"
    return f"{seconds * 1000:.1f} ms"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table; the first row is the head, and the first column holds names."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    ruler = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    head, *body = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ruler, *body))
