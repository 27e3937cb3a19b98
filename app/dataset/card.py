"""The page that tells what a dataset is made of."""

from __future__ import annotations

from app.dataset.build import Counts

CARD = """\
# {title}

Recorded replies for Understudy and for llm-d's inference simulator, in the SQLite file `{file}`.

| | |
|---|---|
| made from | `{source}` |
| model | `{model}` |
| tokenizer | `{tokenizer}` |
| conversations read | {conversations} |
| records | {records} |

Each question of a human with its reply is there twice: as a text prompt, and as a chat with all that was
said before. A prompt is found by its token ids, so a server must use the same tokenizer and chat template.

## Table `{table}`

| column | type | content |
|---|---|---|
| `id` | INTEGER | row number |
| `prompt_hash` | BLOB | SHA-256 of the prompt's token ids, each as four bytes, the lowest first |
| `gen_tokens` | JSON | the reply: `{{"Tokens": [ids], "Strings": [text of each]}}` |
| `n_gen_tokens` | INTEGER | tokens of the reply |
"""


def card(title: str, source: str, model: str, tokenizer: str, table: str, counts: Counts) -> str:
    """The page as Markdown; `title` is the name of the SQLite file, `source` that of the input."""
    return CARD.format(
        title=title.rpartition(".")[0] or title,
        file=title,
        source=source,
        model=model,
        tokenizer=tokenizer,
        table=table,
        conversations=counts.conversations,
        records=counts.records,
    )
