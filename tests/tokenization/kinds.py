"""A tokenizer as of Llama 3, trained on a few lines."""

import tokenizers
from tokenizers import Regex, models, pre_tokenizers, processors, trainers

CORPUS = (
    "The capital of France is Paris, and the answer to all of it is 42 or 1234567.",
    "the cat sat on the mat; the dog's log won't burn. aaa aaaa bababa\n\n    return x == y\n",
    "Überall naïve cafés, straße und Äpfel. 東京は日本の首都です。 эти слова 🎉🎉👍🏽 e\u0301a\u0302\u0301",
    "https://example.org/a/very/long/path?with=query&and=0123456789 <|user|> <mask>",
)  # fmt: skip
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def llama_3() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    splits = [
        pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    made.pre_tokenizer = pre_tokenizers.Sequence(splits)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", "<s>", "</s>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS * 3, trainer)
    begin = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.post_processor = processors.Sequence([processors.ByteLevel(), begin])
    return made
