"""The model of a command line: a folder or a name, and the facts that vLLM reads from its files.

Start reading at `choose_model`.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from config.declaration import ConfigError, shown
from config.files import read_whole
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from vllm_facts.models import Model, PoolingTask, find_model

FOLDER_BEGINNINGS = ("/", "./", "../", "~")
CONFIG_FILES = ("config.json", "params.json")
"""Files of a model. vLLM requires one in a folder; Mistral's format has the second one."""
MODEL_FILES = (*CONFIG_FILES, "sentence_bert_config.json", "modules.json")
"""Files of a folder from which the facts of a model are read."""
CONTEXT_LENGTH = 32_768
"""Context length, in tokens, of a model without a known one: a common value."""
CLASSIFIERS = (
    "ForSequenceClassification",
    "ForAudioClassification",
    "ForImageClassification",
    "ForVideoClassification",
    "ClassificationModel",
    "ForRanking",
)
TOKEN_CLASSIFIERS = ("ForTokenClassification", "RewardModel", "ForRewardModeling")
EMBEDDERS = ("ForTextEncoding", "EmbeddingModel", "ForMaskedLM", "ForRetrieval", "Model")
GENERATORS = ("ChatModel", "LMHeadModel", "ChatGLMModel", "DraftModel")
"""Ends of generating architectures that end in Model."""
TRANSCRIBERS = (
    "CohereAsrForConditionalGeneration",
    "FireRedASR2ForConditionalGeneration",
    "FunASRForConditionalGeneration",
    "MossTranscribeDiarizeForConditionalGeneration",
    "WhisperForConditionalGeneration",
)
"""Architectures that transcribe, and have no chats."""
FIXED_COUNTS = {"ProcessRewardModel": 2, "RewardModel": 1}
"""End of an architecture -> its number of classes, regardless of config.json."""
SEPARATE_TOKENS = "no_post_processing"
"""Value of `method` with which each token of `classifier_from_token` is a class."""
MAX_CLASSES = 10_000
RERANKER_OVERRIDES = (
    '{"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["no", "yes"], '
    '"is_original_qwen3_reranker": true}'
)
"""Fields with which vLLM's documentation loads a Qwen3-Reranker."""
ROBERTA = ("Roberta", "XLMRoberta")
"""Architectures that reserve the first positions for padding."""


class Choice(Struct):
    """A model, and facts that replace defaults."""

    name: str
    written_name: str
    facts: Model
    labels: tuple[str, ...] = ()
    """Names of the classes of a classifier; empty for vLLM's two default ones."""
    is_known: bool = True


def choose_model(word: str, overrides: object = None, *, skips_check: bool = False) -> Choice:
    """Returns the model that a word means.

    A word that begins like a path, or that exists, is a folder. Other words are names.

    Args:
        word: The model of the command line.
        overrides: Content of `--hf-overrides`, which replaces fields of the config.json.
        skips_check: Whether a folder may be missing, or have no model.

    Raises:
        ConfigError: vLLM would not find a model in the folder.
        UsageError: A short name stands for several models.
    """
    fields = overrides if isinstance(overrides, dict) else {}
    if is_folder(word):
        folder = Path(os.path.expanduser(word))
        if not skips_check:
            check_folder(folder)
        facts, labels = _folder_facts(folder, fields)
        return Choice(name=word, written_name=word, facts=facts, labels=labels)
    found = find_model(word)
    name, facts = found or (word, Model())
    facts = _overridden(facts, fields)
    return Choice(
        name=name,
        written_name=word,
        facts=facts,
        labels=labels_of(facts.architecture, fields) or _table_labels(facts),
        is_known=found is not None,
    )


def is_folder(word: str) -> bool:
    """Returns whether a model is a folder, and not a name."""
    return word.startswith(FOLDER_BEGINNINGS) or os.path.exists(word)


def check_folder(folder: Path) -> None:
    """Raises ConfigError for a folder without a model; a file is one in the format GGUF."""
    flaw = ""
    if not folder.exists():
        flaw = "does not exist"
    elif folder.is_dir() and not any((folder / name).exists() for name in CONFIG_FILES):
        flaw = "has no config.json"
    if flaw:
        raise ConfigError(
            f"model {shown(str(folder))}: the folder {flaw}; --skip-model-check starts without it"
        )


def _folder_facts(folder: Path, fields: Mapping[str, object]) -> tuple[Model, tuple[str, ...]]:
    """Returns the facts of a folder, and the names of its classes.

    There are none for a folder without a valid config.json.
    """
    from vllm_facts.model_shape import architecture_of, read_model_config, text_fields

    try:
        document = read_model_config(folder)
        config = text_fields(document)
    except (OSError, UntrustedDataError):
        return Model(), ()
    if "num_labels" in fields:
        config.pop("id2label", None)  # vLLM names as many classes anew
    config |= fields
    architecture = architecture_of(config)
    labels = labels_of(architecture, config)
    task = task_of(architecture, len(labels))
    sentences = _read_json(folder / "sentence_bert_config.json")
    modules = _read_json(folder / "modules.json")
    if isinstance(modules, list) and not task and "architectures" not in fields:
        task = "embed"
    length = config.get("max_position_embeddings")
    if not isinstance(length, int):
        length = 0
    if architecture.startswith(ROBERTA) and length:
        padding = config.get("pad_token_id")
        length -= (padding if isinstance(padding, int) else 1) + 1
    if isinstance(sentences, dict) and isinstance(sentences.get("max_seq_length"), int):
        length = sentences["max_seq_length"]
    facts = Model(
        architecture=architecture,
        max_model_len=max(0, length),
        task=task,
        size=_vector_size(folder, modules, config),
    )
    return facts, labels


def _vector_size(folder: Path, modules: object, config: Mapping[str, object]) -> int:
    """Returns the numbers of a vector: of the last dense layer after the model, if there is one."""
    size = config.get("hidden_size")
    for module in modules if isinstance(modules, list) else []:
        if isinstance(module, dict) and str(module.get("type", "")).endswith("Dense"):
            file = folder / str(module.get("path", "")) / "config.json"
            layer = None
            with suppress(OSError, ValueError):  # a name that no file can have
                if file.resolve().is_relative_to(folder.resolve()):
                    layer = _read_json(file)
            if isinstance(layer, dict):
                size = layer.get("out_features", size)
    return size if isinstance(size, int) and 0 < size <= 65536 else 0


def _overridden(facts: Model, fields: Mapping[str, object]) -> Model:
    """Returns facts with the architecture and length of `--hf-overrides`."""
    if not fields:
        return facts
    from vllm_facts.model_shape import architecture_of  # the class of its sizes takes a millisecond

    architecture = architecture_of(fields)
    length = fields.get("max_position_embeddings")
    if isinstance(length, int) and length > 0:
        facts = replace(facts, max_model_len=length)
    labels = labels_of(architecture or facts.architecture, fields)
    if not architecture:
        if labels and facts.task in ("classify", "score"):
            facts = replace(facts, task=task_of(facts.architecture, len(labels)))
        return facts
    task = task_of(architecture, len(labels))
    size = facts.size if facts.task in ("", "embed") else 0
    return replace(facts, architecture=architecture, task=task, size=size)


def labels_of(architecture: str, config: Mapping[str, object]) -> tuple[str, ...]:
    """Returns the names of the classes as vLLM derives them from a config.json; empty without.

    `classifier_from_token` makes a classifier of a generating model. The weights of two tokens
    become one class, unless `method` keeps a class for each token.
    """
    for ending, count in FIXED_COUNTS.items():
        if architecture.endswith(ending):
            return _numbered_labels(count)
    tokens = config.get("classifier_from_token")
    if isinstance(tokens, list) and tokens:
        return _numbered_labels(len(tokens) if config.get("method") == SEPARATE_TOKENS else 1)
    names = config.get("id2label")
    if isinstance(names, dict) and 0 < len(names) <= MAX_CLASSES:
        numbers = sorted(names, key=lambda key: (len(key), key))  # as numbers: 2 before 10
        return tuple(str(names[number]) or f"LABEL_{number}" for number in numbers)
    return _numbered_labels(config.get("num_labels"))


def _numbered_labels(count: object) -> tuple[str, ...]:
    if type(count) is not int or count > MAX_CLASSES:
        return ()
    return tuple(f"LABEL_{number}" for number in range(count))


def _table_labels(facts: Model) -> tuple[str, ...]:
    """Returns the names of the classes of a classifier in the table."""
    return () if facts.task in ("", "embed") else _numbered_labels(facts.size)


def task_of(architecture: str, class_count: int = 0) -> PoolingTask:
    """Returns the pooling task of an architecture, as vLLM derives it; empty for generation.

    A classifier with one class is a cross-encoder.
    """
    if architecture.endswith(TOKEN_CLASSIFIERS):
        return "token_classify"
    if architecture.endswith("ForRanking"):
        return "score"
    if architecture.endswith(CLASSIFIERS):
        return "score" if class_count == 1 else "classify"
    if architecture.endswith(EMBEDDERS) and not architecture.endswith(GENERATORS):
        return "embed"
    return ""


def _read_json(path: Path) -> object:
    """Returns the content of a small file; None if there is no valid one."""
    from vllm_facts.model_shape import MAX_CONFIG_BYTES

    with suppress(OSError, UntrustedDataError):
        content = read_whole(path, MAX_CONFIG_BYTES, accepts_pipes=False)
        return decode_untrusted(content, decoder=python_json)
    return None


def model_fallbacks(choice: Choice) -> dict[str, str]:
    """Returns the defaults of settings that follow from a model."""
    facts = choice.facts
    task = facts.task or task_of(facts.architecture)
    fallbacks = {}
    if choice.name != choice.written_name:
        fallbacks["served-model-name"] = f"{choice.written_name},{choice.name}"
    if task == "token_classify":
        fallbacks["task"] = "classify"
        fallbacks["pooling-task"] = task
    elif task:
        fallbacks["task"] = task
    elif facts.architecture in TRANSCRIBERS:
        fallbacks["task"] = "transcription"
    if choice.labels:
        fallbacks["class-labels"] = json.dumps(choice.labels)
    size = facts.size or facts.shape.get("hidden_size")
    if task in ("", "embed") and isinstance(size, int):
        fallbacks["default-embedding-dimensions"] = str(size)
    return fallbacks


def _reranker_advice(choice: Choice, *, has_task: bool) -> str:
    """Returns a warning about a reranker whose architecture is that of a generating model."""
    if has_task or choice.facts.task or "reranker" not in choice.name.lower():
        return ""
    if task_of(choice.facts.architecture):
        return ""
    return (
        f"model {shown(choice.name)}: vLLM serves it as a generating model; it is a reranker with "
        f"--hf-overrides '{RERANKER_OVERRIDES}'"
    )


def assumptions(choice: Choice, length: str, *, has_length: bool, has_task: bool) -> str:
    """Returns a warning that lists the assumptions about a model; empty without assumptions.

    `has_length` and `has_task` are True if the command line sets the length and the task.
    """
    if choice.is_known and (choice.facts.max_model_len or has_length):
        return _reranker_advice(choice, has_task=has_task)
    if is_folder(choice.name):
        return ""
    assumed = []
    if not choice.is_known and not has_task and not choice.facts.task:
        assumed.append("it generates text")
    if not has_length and not choice.facts.max_model_len:
        assumed.append(f"its maximum length is {int(length):,} tokens")
    if not choice.is_known:
        assumed.append("its sizes are those of no particular model")
    text = "is not in the table of models" if not choice.is_known else "has no known length"
    return f"model {shown(choice.name)} {text}; assumed: {', '.join(assumed)}"
