"""The model of a command line: a folder or a name, and the facts that vLLM reads from its files.

Start reading at `choose_model`.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from config.declaration import ConfigError, shown
from config.files import read_whole
from config.sources import FlagValues
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from vllm_facts.models import Model, find_model
from vllm_facts.registry import Kind, read_registry
from vllm_facts.version import NEWEST

FOLDER_BEGINNINGS = ("/", "./", "../", "~")
CONFIG_FILES = ("config.json", "params.json")
"""Files of a model. vLLM requires one in a folder; Mistral's format has the second one."""
MODEL_FILES = (*CONFIG_FILES, "sentence_bert_config.json", "modules.json")
"""Files of a folder from which the facts of a model are read."""
CONTEXT_LENGTH = 32_768
"""Context length, in tokens, of a model without a known one: a common value."""
FIXED_COUNTS = {"ProcessRewardModel": 2, "RewardModel": 1, "JinaVLForRanking": 1}
"""End of an architecture -> its number of classes, regardless of config.json."""
ONE_CLASS = re.compile(r"re-?rank|cross-?encoder|ms-?marco|reward", re.IGNORECASE)
"""Words in the names of classifiers with one class: rerankers and reward models."""
SEPARATE_TOKENS = "no_post_processing"
"""Value of `method` with which each token of `classifier_from_token` is a class."""
MAX_CLASSES = 10_000
RERANKER_OVERRIDES = (
    '{"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["no", "yes"], '
    '"is_original_qwen3_reranker": true}'
)
"""Fields with which vLLM's documentation loads a Qwen3-Reranker."""
VECTOR_TASKS = ("", "embed", "embed&token_classify", "token_embed")
"""Tasks whose result has as many numbers as the model's vectors; empty for generation."""
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
    kind: Kind = Kind()
    """Kind of the model by vLLM's registry and `--runner`."""

    @property
    def task(self) -> str:
        """The task of a pooling model, as vLLM's `--pooler-config.task`; empty for generation."""
        return self.kind.pooling_task

    @property
    def has_one_class(self) -> bool:
        """True if a classifier has one class, as cross-encoders have."""
        if self.labels:
            return len(self.labels) == 1
        if is_folder(self.name):
            return False
        return self.facts.task == "score" or ONE_CLASS.search(self.name) is not None


def choose_model(
    word: str,
    overrides: object = None,
    *,
    skips_check: bool = False,
    version: str = NEWEST,
    runner: str = "",
) -> Choice:
    """Returns the model that a word means.

    A word that begins like a path, or that exists, is a folder. Other words are names.

    Args:
        word: The model of the command line.
        overrides: Content of `--hf-overrides`, which replaces fields of the config.json.
        skips_check: Whether a folder may be missing, or have no model.
        version: Version of vLLM whose registry decides what the model is.
        runner: Value of `--runner`; empty for its default.

    Raises:
        ConfigError: vLLM would not find a model in the folder.
        UsageError: A short name stands for several models.
    """
    fields = overrides if isinstance(overrides, dict) else {}
    if is_folder(word):
        folder = Path(os.path.expanduser(word))
        if not skips_check:
            check_folder(folder)
        return _choose_folder(word, folder, fields, version=version, runner=runner)
    found = find_model(word)
    name, facts = found or (word, Model())
    facts = _overridden(facts, fields)
    return Choice(
        name=name,
        written_name=word,
        facts=facts,
        labels=labels_of(facts.architecture, fields) or _table_labels(facts),
        is_known=found is not None,
        kind=_kind_of(
            [facts.architecture], version, runner=runner, is_embedder=facts.task == "embed"
        ),
    )


def _kind_of(architectures: Sequence[str], version: str, *, runner: str, is_embedder: bool) -> Kind:
    """Returns the kind of a model; `is_embedder` is True if it has sentence-transformers' files.

    vLLM looks for these files first, except in releases that compare suffixes first.
    """
    registry = read_registry()
    kind = registry.kind_of(architectures, version, runner)
    if is_embedder and not runner and not registry.compares_suffixes_first(version):
        return registry.kind_of(architectures, version, "pooling")
    return kind


def runner_of(options: FlagValues) -> str:
    """Returns the value of `--runner` among options; empty for `auto`, or for a draft model."""
    runner = options.get("runner")
    if runner == "generate" or runner == "pooling":
        return str(runner)
    return ""


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


def _choose_folder(
    word: str, folder: Path, fields: Mapping[str, object], *, version: str, runner: str
) -> Choice:
    """Returns the model of a folder; one without a valid config.json generates."""
    from vllm_facts.model_shape import architecture_of, read_model_config, text_fields

    try:
        document = read_model_config(folder)
        config = text_fields(document)
    except (OSError, UntrustedDataError):
        kind = _kind_of([], version, runner=runner, is_embedder=False)
        return Choice(name=word, written_name=word, facts=Model(), kind=kind)
    if "num_labels" in fields:
        config.pop("id2label", None)  # vLLM names as many classes anew
    config |= fields
    modules = _read_json(folder / "modules.json")
    facts = Model(
        architecture=architecture_of(config),
        max_model_len=_folder_length(folder, config),
        size=_vector_size(folder, modules, config),
    )
    kind = _kind_of(
        _architectures(config),
        version,
        runner=runner,
        is_embedder=isinstance(modules, list) and "architectures" not in fields,
    )
    return Choice(
        name=word,
        written_name=word,
        facts=facts,
        labels=labels_of(kind.architecture or facts.architecture, config),
        kind=kind,
    )


def _architectures(config: Mapping[str, object]) -> list[str]:
    """Returns all architectures of a config.json."""
    names = config.get("architectures")
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str)]


def _folder_length(folder: Path, config: Mapping[str, object]) -> int:
    """Returns the maximum length of the model in a folder, in tokens; 0 if it is unknown."""
    from vllm_facts.model_shape import architecture_of

    sentences = _read_json(folder / "sentence_bert_config.json")
    if isinstance(sentences, dict) and isinstance(sentences.get("max_seq_length"), int):
        return max(0, int(sentences["max_seq_length"]))
    length = config.get("max_position_embeddings")
    if not isinstance(length, int):
        return 0
    if architecture_of(config).startswith(ROBERTA) and length:
        padding = config.get("pad_token_id")
        length -= (padding if isinstance(padding, int) else 1) + 1
    return max(0, length)


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
    if not architecture:
        return facts
    size = facts.size if facts.task in ("", "embed") else 0
    return replace(facts, architecture=architecture, task="", size=size)


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
    fallbacks = {}
    if choice.name != choice.written_name:
        fallbacks["served-model-name"] = f"{choice.written_name},{choice.name}"
    task = choice.task
    if task == "classify":
        fallbacks["task"] = "classify"
        if choice.has_one_class:
            fallbacks["task"] = "score"
    elif task == "token_classify" and "classify" in choice.kind.tasks:
        fallbacks["task"] = "classify"
        fallbacks["pooling-task"] = task
    elif task:
        fallbacks["task"] = task.partition("&")[0]
    elif choice.kind.transcribes_only:
        fallbacks["task"] = "transcription"
    if choice.labels:
        fallbacks["class-labels"] = json.dumps(choice.labels)
    size = facts.size or facts.shape.get("hidden_size")
    if task in VECTOR_TASKS and isinstance(size, int):
        fallbacks["default-embedding-dimensions"] = str(size)
    return fallbacks


def _reranker_advice(choice: Choice, *, has_task: bool) -> str:
    """Returns a warning about a reranker whose architecture is that of a generating model."""
    if has_task or choice.task or "reranker" not in choice.name.lower():
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
    if not choice.is_known and not has_task and not choice.task:
        assumed.append("it generates text")
    if not has_length and not choice.facts.max_model_len:
        assumed.append(f"its maximum length is {int(length):,} tokens")
    if not choice.is_known:
        assumed.append("its sizes are those of no particular model")
    text = "is not in the table of models" if not choice.is_known else "has no known length"
    return f"model {shown(choice.name)} {text}; assumed: {', '.join(assumed)}"
