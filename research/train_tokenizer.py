"""Train the embedded tokenizer: byte-level BPE on our own sentences and word list.

    python research/train_tokenizer.py [--output app/core/text/data]

Writes `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`. The same sources always
give the same bytes. The vocabulary holds all 256 byte symbols, so that any Unicode text survives
encode and decode.
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parent.parent
SENTENCES = ROOT / "app" / "core" / "engine" / "simulated" / "sentences"
DATA = ROOT / "app" / "core" / "text" / "data"

VOCABULARY_SIZE = 6144
END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")

# Roles outside the four are text between the same brackets; tool definitions open the conversation.
CHAT_TEMPLATE = """\
{%- if tools %}<|system|>
You can call these functions. To call one, answer with a JSON object that has its name and its arguments.
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|endoftext|>
{% endif %}
{%- for message in messages %}<|{{ message.role }}|>
{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{ "\\n" }}{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
{%- endfor %}<|endoftext|>
{% endfor %}
{%- if add_generation_prompt %}<|assistant|>
{% endif %}"""


def sentences() -> Iterator[str]:
    """Yield every sample sentence, with the line feeds and tabs of the code samples restored."""
    for name in ("english", "cjk", "emoji", "code"):
        text = (SENTENCES / f"{name}.txt").read_text(encoding="utf-8")
        for line in text.splitlines():
            yield line.replace("\\n", "\n").replace("\\t", "\t") if name == "code" else line


def inflections(word: str) -> list[str]:
    """Return `word` with the common English endings, spelled roughly right (a vocabulary, not a
    grammar).
    """
    stem = word[:-1] if word.endswith("e") else word
    plural = f"{word[:-1]}ies" if word.endswith("y") and word[-2:-1] not in "aeiou" else f"{word}s"
    return [plural, f"{stem}ed", f"{stem}ing"]


def composed_lines(words: list[str], count: int = 12_000) -> Iterator[str]:
    """Yield lines of random words, earlier words more often, in the shapes of prose, code and
    numbers.
    """
    dice = random.Random(20240229)
    # Zipf: the word list is ordered by how common a word is, and natural text falls off like 1 /
    # rank.
    weights = [1.0 / (rank + 20) for rank in range(len(words))]
    for line in range(count):
        chosen = dice.choices(words, weights, k=dice.randint(5, 14))
        if line % 3 == 0:
            chosen = [dice.choice(inflections(word)) if len(word) > 3 else word for word in chosen]
        yield (" ".join(chosen)).capitalize() + dice.choice(".....?!:")
        if line % 10 == 0:
            call = f"{'_'.join(chosen[:2])}({', '.join(chosen[2:4])})"
            yield f"{dice.randint(0, 9999)} {dice.random() * 100:.2f} {call}"


def corpus() -> Iterator[str]:
    """Yield the whole training text:

    sentences weigh most, then every listed word, then composed lines.
    """
    words = (DATA / "words.txt").read_text(encoding="utf-8").split()
    for sentence in sentences():
        yield from [sentence] * 8
    for word in words:
        yield f"{word} {word} {word.capitalize()} {' '.join(inflections(word)) if len(word) > 3 else word}"
    yield from composed_lines(words)


def train() -> Tokenizer:
    """Return the trained tokenizer:

    no normaliser, GPT-2's splitting rule, byte-level symbols both ways.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        min_frequency=2,
        show_progress=False,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def main() -> None:
    """Train and write the three files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=DATA, help="folder to write into")
    folder: Path = parser.parse_args().output
    tokenizer = train()
    config = {"eos_token": END_OF_TEXT, "pad_token": END_OF_TEXT, "model_max_length": 131072}
    compact = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(compact + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8"
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    print(f"{tokenizer.get_vocab_size()} entries, {len(compact.encode()) // 1024} KiB in {folder}")


if __name__ == "__main__":
    main()
