"""A hook of mkdocs (mkdocs.yml) that prepares wide tables of text for phones.

Each cell gets the heading of its column as `data-label`. On a narrow screen, the style sheet of the
site shows each row of such a table as a block, with these labels.
"""

import re

TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
HEADING = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
ROW = re.compile(r"<tr>\s*<td.*?</tr>", re.DOTALL)
CELL = re.compile(r"<td([^>]*)>(.*?)</td>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
MIN_COLUMNS = 3
LONG_CELL = 40
"""Characters of a cell that make a table one of text, not of figures."""


def on_page_content(html: str, **unused: object) -> str:
    """Labels the cells of wide tables of text."""
    return TABLE.sub(_labeled, html)


def _labeled(table: re.Match[str]) -> str:
    html = table[0]
    headings = [TAG.sub("", heading) for heading in HEADING.findall(html)]
    lengths = [len(TAG.sub("", text)) for _, text in CELL.findall(html)]
    if len(headings) < MIN_COLUMNS or max(lengths, default=0) < LONG_CELL:
        return html

    def label_row(row: re.Match[str]) -> str:
        labels = iter(headings)

        def label_cell(cell: re.Match[str]) -> str:
            return f'<td{cell[1]} data-label="{next(labels, "")}">{cell[2]}</td>'

        return CELL.sub(label_cell, row[0])

    return ROW.sub(label_row, html).replace("<table>", '<table data-kind="rows">', 1)
