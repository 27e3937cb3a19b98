"""Writes vllm_facts/models.json: facts of models that people serve.

    $ python -m scripts.model_table VLLM RECIPES AICONFIGURATOR
    $ python -m scripts.model_table --tested VLLM ...

The folders of the first command are the sources: vLLM's source distribution, a checkout of
vllm-project/recipes, and the unpacked wheel of aiconfigurator-core. All are Apache-2.0. Facts of
pooling models are those of their own files (`POOLING`): no package has these files. The `config` of
a row and its source are written by hand. The program keeps them.

The second command adds the models of vLLM's tests and documentation that the table does not find,
from source distributions of one or more releases, the newest first.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from msgspec import to_builtins

from scripts.media_table import add_media, write
from vllm_facts.model_names import base_name, sizes_of
from vllm_facts.models import FILE, facts_of, find_model
from vllm_facts.speech_names import WHISPER_LENGTH

AICONFIGURATOR = "config.json, as aiconfigurator-core ships it"
RECIPE = "vllm-project/recipes"
VLLM_TESTS = "tests of vLLM"
VLLM_DOCUMENTATION = "documentation of vLLM"
MODEL_CARD = "config.json and model card"
BASE_FIELDS = ("architecture", "max_model_len", "shape")
"""Facts that a repack has from its base, and that the config.json of a row says."""
RECIPE_FIELDS = ("tool_parser", "reasoning_parser")
"""Facts that recipes alone have."""
RECIPE_LENGTH = "recipe_length"
"""Key of a recipe's length among the facts."""
PARSERS = {"--tool-call-parser": "tool_parser", "--reasoning-parser": "reasoning_parser"}
TESTED_MODELS = Path("tests", "models", "registry.py")
OTHER_TABLES = ("SPECULATIVE", "BACKEND")
"""Words in the names of tables whose architectures are not those of the models."""
TESTED_TASKS = {"EmbedModelInfo": "embed", "RerankModelInfo": "score"}
"""Class of vLLM's tests of pooling models -> task."""
MODEL_NAME = re.compile(r"[\w.-]+/[\w.-]+")
DOCUMENTED_ROW = re.compile(r"\| `(\w+)`")
"""Begin of a row of the documentation, with an architecture."""
DOCUMENTED_NAME = re.compile(rf"`({MODEL_NAME.pattern})`(?! ?\(see note)")
"""A model in such a row; notes say that a model needs options."""
EMBEDDERS_PAGE = "embed.md"
TEXT_COLUMNS = 5
"""Columns of the tables of models that read text alone; other tables have one for the inputs."""
CHECKED_BY_NAME = ("hmellor", "hf-internal-testing", "TitanML", "bzantium", "luccafong", "trl-")
"""Owners of random models for tests."""

# Architecture, task, numbers of a vector or classes, maximum length in vLLM.
POOLING: dict[str, tuple[str, str, int, int]] = {
    "Alibaba-NLP/gte-Qwen2-1.5B-instruct": ("Qwen2ForCausalLM", "embed", 1536, 32768),
    "Alibaba-NLP/gte-Qwen2-7B-instruct": ("Qwen2ForCausalLM", "embed", 3584, 32768),
    "Alibaba-NLP/gte-modernbert-base": ("ModernBertModel", "embed", 768, 8192),
    "Alibaba-NLP/gte-multilingual-base": ("GteNewModel", "embed", 768, 8192),
    "Alibaba-NLP/gte-reranker-modernbert-base": (
        *("ModernBertForSequenceClassification", "score", 1, 8192),
    ),
    "BAAI/bge-base-en-v1.5": ("BertModel", "embed", 768, 512),
    "BAAI/bge-large-en-v1.5": ("BertModel", "embed", 1024, 512),
    "BAAI/bge-large-zh-v1.5": ("BertModel", "embed", 1024, 512),
    "BAAI/bge-m3": ("XLMRobertaModel", "embed", 1024, 8192),
    "BAAI/bge-multilingual-gemma2": ("Gemma2Model", "embed", 3584, 8192),
    "BAAI/bge-reranker-base": ("XLMRobertaForSequenceClassification", "score", 1, 512),
    "BAAI/bge-reranker-large": ("XLMRobertaForSequenceClassification", "score", 1, 512),
    "BAAI/bge-reranker-v2-m3": ("XLMRobertaForSequenceClassification", "score", 1, 8192),
    "BAAI/bge-small-en-v1.5": ("BertModel", "embed", 384, 512),
    "Qwen/Qwen2.5-Math-PRM-72B": ("Qwen2ForProcessRewardModel", "token_classify", 2, 4096),
    "Qwen/Qwen2.5-Math-PRM-7B": ("Qwen2ForProcessRewardModel", "token_classify", 2, 4096),
    "Qwen/Qwen3-Embedding-0.6B": ("Qwen3ForCausalLM", "embed", 1024, 32768),
    "Qwen/Qwen3-Embedding-4B": ("Qwen3ForCausalLM", "embed", 2560, 40960),
    "Qwen/Qwen3-Embedding-8B": ("Qwen3ForCausalLM", "embed", 4096, 40960),
    "Qwen/Qwen3-Reranker-0.6B": ("Qwen3ForCausalLM", "", 1024, 40960),
    "Qwen/Qwen3-Reranker-4B": ("Qwen3ForCausalLM", "", 2560, 40960),
    "Qwen/Qwen3-Reranker-8B": ("Qwen3ForCausalLM", "", 4096, 40960),
    "Snowflake/snowflake-arctic-embed-l": ("BertModel", "embed", 1024, 512),
    "Snowflake/snowflake-arctic-embed-l-v2.0": ("XLMRobertaModel", "embed", 1024, 8192),
    "Snowflake/snowflake-arctic-embed-m": ("BertModel", "embed", 768, 512),
    "Snowflake/snowflake-arctic-embed-m-v1.5": ("BertModel", "embed", 768, 512),
    "Snowflake/snowflake-arctic-embed-m-v2.0": ("GteModel", "embed", 768, 8192),
    "Snowflake/snowflake-arctic-embed-s": ("BertModel", "embed", 384, 512),
    "cross-encoder/ms-marco-MiniLM-L-6-v2": ("BertForSequenceClassification", "score", 1, 512),
    "google/embeddinggemma-300m": ("Gemma3TextModel", "embed", 768, 2048),
    "ibm-granite/granite-embedding-125m-english": ("RobertaModel", "embed", 768, 512),
    "intfloat/e5-base-v2": ("BertModel", "embed", 768, 512),
    "intfloat/e5-large-v2": ("BertModel", "embed", 1024, 512),
    "intfloat/e5-mistral-7b-instruct": ("MistralModel", "embed", 4096, 4096),
    "intfloat/e5-small-v2": ("BertModel", "embed", 384, 512),
    "intfloat/multilingual-e5-base": ("XLMRobertaModel", "embed", 768, 512),
    "intfloat/multilingual-e5-large": ("XLMRobertaModel", "embed", 1024, 512),
    "intfloat/multilingual-e5-large-instruct": ("XLMRobertaModel", "embed", 1024, 512),
    "intfloat/multilingual-e5-small": ("BertModel", "embed", 384, 512),
    "jinaai/jina-embeddings-v3": ("XLMRobertaModel", "embed", 1024, 8192),
    "jinaai/jina-reranker-m0": ("JinaVLForRanking", "score", 1, 32768),
    "jinaai/jina-reranker-v2-base-multilingual": (
        *("XLMRobertaForSequenceClassification", "score", 1, 1024),
    ),
    "mixedbread-ai/mxbai-embed-large-v1": ("BertModel", "embed", 1024, 512),
    "nomic-ai/nomic-embed-text-v1": ("NomicBertModel", "embed", 768, 2048),
    "nomic-ai/nomic-embed-text-v1.5": ("NomicBertModel", "embed", 768, 2048),
    "nomic-ai/nomic-embed-text-v2-moe": ("NomicBertModel", "embed", 768, 512),
    "sentence-transformers/all-MiniLM-L12-v2": ("BertModel", "embed", 384, 128),
    "sentence-transformers/all-MiniLM-L6-v2": ("BertModel", "embed", 384, 256),
}

SPEECH: dict[str, tuple[str, int]] = {
    **{
        f"openai/whisper-{size}": ("WhisperForConditionalGeneration", WHISPER_LENGTH)
        for size in (
            *("tiny", "tiny.en", "base", "base.en", "small", "small.en", "medium", "medium.en"),
            *("large", "large-v2", "large-v3", "large-v3-turbo"),
        )
    },
    **{
        f"distil-whisper/distil-{size}": ("WhisperForConditionalGeneration", WHISPER_LENGTH)
        for size in ("small.en", "medium.en", "large-v2", "large-v3", "large-v3.5")
    },
    "Qwen/Qwen3-ASR-0.6B": ("Qwen3ASRForConditionalGeneration", 65_536),
}
"""Architecture and maximum length of speech models in their config.json."""


def main(vllm: Path, recipes: Path, aiconfigurator: Path) -> None:
    """Writes the file."""
    table: dict[str, dict[str, Any]] = {}
    for name, architecture in _tested_models(vllm):
        table[name] = {"architecture": architecture, "source": VLLM_TESTS}
    for name, facts in _tested_pooling_models(vllm):
        table[name] = {**facts, "source": VLLM_TESTS}
    for name, facts in _recipes(recipes):
        table[name] = {**table.get(name, {}), **facts, "source": RECIPE}
    for path in sorted(aiconfigurator.rglob("model_configs/*_config.json")):
        name = path.name.removesuffix("_config.json").replace("--", "/")
        if "hf_quant" in path.name:
            continue
        facts = to_builtins(facts_of(json.loads(path.read_text("utf-8"))))
        table[name] = {**table.get(name, {}), **facts, "source": AICONFIGURATOR}
    written = json.loads(FILE.read_bytes())
    for name, row in written.items():
        if "config" in row:
            table[name] = with_config(table.get(name, {}), row["config"], row["source"])
    _complete(table)
    for name, (architecture, task, size, length) in POOLING.items():
        table[name] = {
            **table.get(name, {}),
            **{"architecture": architecture, "task": task, "size": size, "max_model_len": length},
            "source": MODEL_CARD,
        }
    for name, (architecture, length) in SPEECH.items():
        table[name] = {
            **table.get(name, {}),
            **{"architecture": architecture, "max_model_len": length, "source": MODEL_CARD},
        }
    canonical_names = {name.lower(): name for name in table}  # the hub ignores case
    table = {name: file_row(table[name]) for name in canonical_names.values()}
    add_media(table)
    write(table)
    print(f"{FILE}: {len(table)} models, {FILE.stat().st_size} bytes")


def add_tested(folders: Sequence[Path]) -> None:
    """Adds the models that the table does not find; the folders are in order of precedence."""
    table: dict[str, dict[str, Any]] = json.loads(FILE.read_bytes())
    known_names = {name.lower() for name in table}
    for folder in folders:
        for name, row in {**_documented(folder), **_tested(folder)}.items():
            if name.lower() not in known_names and find_model(name) is None:
                known_names.add(name.lower())
                table[name] = row
    write(table)
    print(f"{FILE}: {len(table)} models, {FILE.stat().st_size} bytes")


def _tested(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the models in vLLM's tests; a wheel has no tests.

    Of several architectures, the last one counts: that of a multimodal model. A drafter's row has
    the model that it drafts for, under the architecture of the drafter.
    """
    rows: dict[str, dict[str, Any]] = {}
    if not (folder / TESTED_MODELS).exists():
        return rows
    tree = ast.parse((folder / TESTED_MODELS).read_text("utf-8"))
    for statement in tree.body:
        text = ast.unparse(statement)
        if not any(word in text.partition("=")[0] for word in OTHER_TABLES):
            for name, architecture in _examples_in(statement):
                rows[name] = {"architecture": architecture, "source": VLLM_TESTS}
    return rows


def _documented(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the models in the tables of vLLM's documentation, with their architectures."""
    rows: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / "docs" / "models").rglob("*.md")):
        for line in path.read_text("utf-8").splitlines():
            match = DOCUMENTED_ROW.match(line)
            if match is None:
                continue
            row = {"architecture": match[1], "source": VLLM_DOCUMENTATION}
            if path.name == EMBEDDERS_PAGE and line.count(" | ") < TEXT_COLUMNS:
                row["task"] = "embed"
            for name in DOCUMENTED_NAME.findall(line):
                rows[name] = row
    return rows


def with_config(row: dict[str, Any], config: dict[str, Any], source: str) -> dict[str, Any]:
    """Returns a row with a config.json, which says what vLLM does.

    Recipes and tests recommend lengths, and `check` compares with the length that vLLM accepts. A
    recipe tells the format of a repack as its name does.
    """
    facts = to_builtins(facts_of(config))
    return {**row, **facts, "format": row.get("format", ""), "config": config, "source": source}


def file_row(facts: dict[str, Any]) -> dict[str, Any]:
    """Returns the row of the file: recipes apart, and without the facts of its config.json."""
    row = {name: value for name, value in facts.items() if value not in ("", 0, {})}
    recipe = {name: row.pop(name) for name in RECIPE_FIELDS if name in row}
    recipe_length = row.pop(RECIPE_LENGTH, 0)
    if recipe_length and recipe_length != row.get("max_model_len"):
        recipe["max_model_len"] = recipe_length
    if recipe:
        row["recipe"] = recipe
    if "config" in row:
        said = to_builtins(facts_of(row["config"]))
        for name in (*BASE_FIELDS, "format"):
            if name in row and row[name] == said.get(name):
                del row[name]
    return row


def _recipes(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the models of recipes, and their repacks with the model as base."""
    for path in sorted((folder / "models").rglob("*.yaml")):
        recipe = yaml.safe_load(path.read_text("utf-8"))
        model = recipe["model"]
        facts: dict[str, Any] = {}
        if isinstance(model.get("context_length"), int) and model["context_length"] > 0:
            facts[RECIPE_LENGTH] = model["context_length"]
        for feature in (recipe.get("features") or {}).values():
            words = [str(word) for word in feature.get("args") or ()]
            for word, value in zip(words, words[1:], strict=False):
                if word in PARSERS:
                    facts[PARSERS[word]] = value
        if "omni" in (recipe["meta"].get("tasks") or ()) or not facts:
            continue  # a model of vLLM-Omni, or one without facts
        yield model["model_id"], facts
        for variant in (recipe.get("variants") or {}).values():
            name = variant.get("model_id")
            if name and name != model["model_id"]:
                yield name, {**facts, "base": model["model_id"], "format": variant["precision"]}


def _tested_models(vllm: Path) -> Iterator[tuple[str, str]]:
    """Yields names and architectures of the models in vLLM's tests."""
    yield from _examples_in(ast.parse((vllm / TESTED_MODELS).read_text("utf-8")))


def _examples_in(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yields names and architectures of the models in tables of examples."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(value, ast.Call):
                continue
            for name in _names_in(value):
                if MODEL_NAME.fullmatch(name) and not name.startswith(CHECKED_BY_NAME):
                    yield name, str(key.value)


def _tested_pooling_models(vllm: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the models of vLLM's tests of embeddings and ranks, without those with overrides."""
    for path in sorted((vllm / "tests" / "models" / "language").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            task = TESTED_TASKS.get(node.func.id)
            words = {word.arg: word.value for word in node.keywords}
            architecture = words.get("architecture")
            if task is None or not node.args or "hf_overrides" in words:
                continue
            if isinstance(node.args[0], ast.Constant) and isinstance(architecture, ast.Constant):
                yield str(node.args[0].value), {"architecture": architecture.value, "task": task}


def _names_in(call: ast.Call) -> Iterator[str]:
    """Yields the model of an example, and its variants; not its tokenizer or drafter."""
    if any(word.arg == "speculative_model" for word in call.keywords):
        return
    variants = [word.value for word in call.keywords if word.arg == "extras"]
    for argument in (*call.args, *variants):
        values = argument.values if isinstance(argument, ast.Dict) else [argument]
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value


def _complete(table: dict[str, dict[str, Any]]) -> None:
    """Copies facts between a model and its repacks: they have one architecture and shape."""
    by_base: dict[str, list[str]] = {}
    for name in table:
        base = table[name].get("base") or name
        if sizes_of(name) != sizes_of(base):  # a smaller or larger model in the recipe
            del table[name]["base"]
            base = name
        by_base.setdefault(base_name(base), []).append(name)
    for names in by_base.values():
        for field in (*BASE_FIELDS, RECIPE_LENGTH):
            known = [table[name][field] for name in names if table[name].get(field)]
            for name in names:
                if known and not table[name].get(field):
                    table[name][field] = known[0]
    for row in table.values():
        base = table.get(str(row.get("base", "")), {})
        if "config" in base and "config" not in row:
            row |= {field: base[field] for field in BASE_FIELDS if field in base}


if __name__ == "__main__":
    if sys.argv[1] == "--tested":
        add_tested([Path(argument) for argument in sys.argv[2:]])
    else:
        main(*map(Path, sys.argv[1:4]))
