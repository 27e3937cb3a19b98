"""Trains the embedded tokenizer: byte-level BPE on the sample sentences and a list of words.

    python -m research.train_tokenizer [--output app/core/text/data]

Writes `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`. The same sources always
give the same bytes. The vocabulary has all 256 byte symbols, so that any Unicode text survives
encoding and decoding.
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
MARKS = ("<think>", "</think>")
"""Tokens after the vocabulary, so that they change no other id; decoding keeps them, as in Qwen3."""

# Other roles are text between the same brackets. Definitions of tools begin the conversation.
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


def read_sentences() -> Iterator[str]:
    """Yields every sample sentence; `\\n` and `\\t` in samples of code are line feeds and tabs."""
    for name in ("english", "cjk", "emoji", "code"):
        for line in (SENTENCES / f"{name}.txt").read_text("utf-8").splitlines():
            if name == "code":
                line = line.replace("\\n", "\n").replace("\\t", "\t")
            yield line


def inflections(word: str) -> list[str]:
    """Returns a word with the common English endings; the spelling is only roughly right."""
    plural = f"{word}s"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        plural = f"{word[:-1]}ies"
    stem = word[:-1] if word.endswith("e") else word
    return [plural, f"{stem}ed", f"{stem}ing"]


def composed_lines(words: list[str], count: int = 12_000) -> Iterator[str]:
    """Yields lines of random words in the shapes of prose, code and numbers."""
    rng = random.Random(20240229)
    # The list is ordered by frequency, which falls like 1 / rank in natural text (Zipf).
    weights = [1.0 / (rank + 20) for rank in range(len(words))]
    for number in range(count):
        line = rng.choices(words, weights, k=rng.randint(5, 14))
        if number % 3 == 0:
            line = [rng.choice(inflections(word)) if len(word) > 3 else word for word in line]
        yield " ".join(line).capitalize() + rng.choice(".....?!:")
        if number % 10 == 0:
            call = f"{'_'.join(line[:2])}({', '.join(line[2:4])})"
            yield f"{rng.randint(0, 9999)} {rng.random() * 100:.2f} {call}"


def corpus() -> Iterator[str]:
    """Yields the training text: sentences, which weigh most, then every word, then composed lines."""
    words = (DATA / "words.txt").read_text("utf-8").split()
    for sentence in read_sentences():
        yield from [sentence] * 8
    for word in words:
        forms = [word]
        if len(word) > 3:
            forms = inflections(word)
        yield " ".join([word, word, word.capitalize(), *forms])
    yield from composed_lines(words)


def train() -> Tokenizer:
    """Returns a tokenizer without a normalizer, with GPT-2's rule for words and its byte symbols."""
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
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    return tokenizer


def main() -> None:
    """Trains the tokenizer, and writes the three files."""
    parser = argparse.ArgumentParser(description="Trains the embedded tokenizer.")
    parser.add_argument("--output", type=Path, default=DATA, help="folder of the three files")
    folder: Path = parser.parse_args().output
    tokenizer = train()
    compact = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
    config = {"eos_token": END_OF_TEXT, "pad_token": END_OF_TEXT, "model_max_length": 131072}
    files = {
        "tokenizer.json": compact + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
        "chat_template.jinja": CHAT_TEMPLATE,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    print(f"{tokenizer.get_vocab_size()} entries, {len(compact.encode()) // 1024} KiB in {folder}")


if __name__ == "__main__":
    main()
