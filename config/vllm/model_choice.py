"""The model of a command line: a folder or a name, and the facts that vLLM reads from its files.

Start reading at `choose_model`.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from config.declaration import ConfigError, shown
from config.files import read_whole
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from config.vllm.models import Model, PoolingTask, find_model

FOLDER_BEGINNINGS = ("/", "./", "../", "~")
CONFIG_FILES = ("config.json", "params.json")
"""Files of a model. vLLM requires one in a folder; Mistral's format has the second one."""
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
ROBERTA = ("Roberta", "XLMRoberta")
"""Architectures that reserve the first positions for padding."""


class Choice(Struct):
    """A model, and facts that replace defaults."""

    name: str
    written_name: str
    facts: Model
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
        folder = Path(word).expanduser()
        if not skips_check:
            check_folder(folder)
        facts = _folder_facts(folder, fields)
        return Choice(name=word, written_name=word, facts=facts)
    found = find_model(word)
    if found is None:
        return Choice(
            name=word, written_name=word, facts=_overridden(Model(), fields), is_known=False
        )
    name, facts = found
    return Choice(name=name, written_name=word, facts=_overridden(facts, fields))


def is_folder(word: str) -> bool:
    """Returns whether a model is a folder, and not a name."""
    if word.startswith(FOLDER_BEGINNINGS):
        return True
    with suppress(OSError, ValueError):  # no file can have this name
        return Path(word).exists()
    return False


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


def _folder_facts(folder: Path, fields: Mapping[str, object]) -> Model:
    """Returns the facts of a folder; none for one without a valid config.json."""
    from config.model_shape import architecture_of, read_model_config, text_fields

    try:
        document = read_model_config(folder)
        config = text_fields(document)
    except (OSError, UntrustedDataError):
        return Model()
    config |= fields
    architecture = architecture_of(config)
    task = task_of(architecture, _class_count(config))
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
    return Model(
        architecture=architecture,
        max_model_len=max(0, length),
        task=task,
        size=_vector_size(folder, modules, config),
    )


def _vector_size(folder: Path, modules: object, config: Mapping[str, object]) -> int:
    """Returns the numbers of a vector: of the last dense layer after the model, if there is one."""
    size = config.get("hidden_size")
    for module in modules if isinstance(modules, list) else []:
        if isinstance(module, dict) and str(module.get("type", "")).endswith("Dense"):
            layer = _read_json(folder / str(module.get("path", "")) / "config.json")
            if isinstance(layer, dict):
                size = layer.get("out_features", size)
    return size if isinstance(size, int) and 0 < size <= 65536 else 0


def _overridden(facts: Model, fields: Mapping[str, object]) -> Model:
    """Returns facts with the architecture and length of `--hf-overrides`."""
    if not fields:
        return facts
    from config.model_shape import architecture_of  # the class of its sizes takes a millisecond

    architecture = architecture_of(fields)
    length = fields.get("max_position_embeddings")
    if isinstance(length, int) and length > 0:
        facts = replace(facts, max_model_len=length)
    if not architecture:
        return facts
    hidden_size = facts.shape.get("hidden_size")
    size = facts.size or (hidden_size if isinstance(hidden_size, int) else 0)
    task = task_of(architecture, _class_count(fields))
    return replace(facts, architecture=architecture, task=task, size=size)


def _class_count(config: Mapping[str, object]) -> int:
    labels = config.get("num_labels")
    names = config.get("id2label")
    if config.get("classifier_from_token"):
        return 1
    if isinstance(labels, int):
        return labels
    return len(names) if isinstance(names, dict) else 0


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
    from config.model_shape import MAX_CONFIG_BYTES

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
    if task in ("", "embed") and facts.size:
        fallbacks["default-embedding-dimensions"] = str(facts.size)
    return fallbacks


def assumptions(choice: Choice, length: str, *, has_length: bool, has_task: bool) -> str:
    """Returns a warning that lists the assumptions about a model; empty without assumptions.

    `has_length` and `has_task` are True if the command line sets the length and the task.
    """
    if choice.is_known and (choice.facts.max_model_len or has_length):
        return ""
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
