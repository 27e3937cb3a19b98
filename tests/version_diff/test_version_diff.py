"""What came, went and changed between two versions of vLLM: scripts/version_diff."""

import gzip
import json
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from app.core.versions.chain import changes_of
from app.core.versions.change import Change
from scripts.version_diff.__main__ import main
from scripts.version_diff.difference import Difference, differences, text_of
from scripts.version_diff.fact import Fact
from scripts.version_diff.history import add
from scripts.version_diff.package import Package, read_package
from scripts.version_diff.reading import read_facts
from scripts.version_diff.replacements import replacements_in
from vllm_facts.history import History

EXTRACT = Path(__file__).with_name("extract.json.gz")
# Keys are words of the sentence about the newer version.
PROTOCOL_LINES = {
    "return_weight_versions": [("field", "return_weight_versions"), ("field", "weight_versions")],
    "role chunk of a chat does not": [("field", "kv_transfer_params")],
    "skip_special_tokens": [("field", "skip_special_tokens")],
    "allowed_token_ids": [
        ("field", "allowed_token_ids"),
        ("code", "BeamSearchOnlineMixin"),
    ],
    "prompt_cache_key": [
        ("field", "prompt_cache_key"),
        ("field", "prompt_cache_options"),
        ("field", "prompt_cache_retention"),
        ("field", "safety_identifier"),
        ("field", "spaces_between_special_tokens"),
    ],
    "have `parse_context`": [("field", "parse_context")],
    "`derender` output mode": [("field", "output_mode")],
    "profiler_kwargs": [("field", "profiler_kwargs")],
    "POST /v1/decisions": [("route", "POST /v1/decisions"), ("field", "joint")],
    "is_scaling_elastic_ep": [("route", "POST /is_scaling_elastic_ep")],
    "late_chunking_params": [("field", "TokenEmbeddingRequest")],
    "simple_cpu_offload_num_blocks": [("metric", "vllm:cache_config_info")],
}
BEHAVIOR_LINES = {
    "arrive during a pause": ("vllm/v1/engine", "+pause_generation"),
    "reserved for the reply": ("vllm/entrypoints/openai/chat_completion", "build_tok_params"),
    "`incomplete` status": ("vllm/entrypoints/openai/responses", "+response_item_status"),
    "Anthropic's types": ("vllm/entrypoints/anthropic", "+translate_error_type"),
    "prefill-schedule-interval": ("vllm/v1/core/sched", "schedule"),
    "still receive their tokens": ("vllm/v1/core/sched", "schedule"),
    "counts until it ends": ("vllm/v1/core/sched", "schedule"),
    "step of these drafts": ("vllm/v1/core/sched", "update_from_output"),
    "start before this one": ("vllm/v1/core/sched", "schedule"),
    # In a private function, which the list leaves out beside public ones.
    "step that has room for it": ("vllm/v1/core/sched", "schedule"),
    "reuses the state": ("vllm/v1/core", "cache_blocks"),
    "stores missing blocks again": ("vllm/v1/kv_offload/cpu/policies", "insert"),
    "match generated ones": (
        "vllm/entrypoints/scale_out/derender",
        "derender_chat_response",
    ),
}
"""Differences that no declaration shows: the folder, and the function whose code changed."""
OPTIONS_FILE = "vllm/engine/arg_utils.py"


@pytest.fixture(scope="module")
def changes() -> list[Difference]:
    """The list of 0.32.0 to 0.33.0, of the parts in the extract."""
    versions = json.loads(gzip.decompress(EXTRACT.read_bytes()))
    old, new = (read_facts(Package(versions[version])) for version in ("0.32.0", "0.33.0"))
    return differences(old, new)


def evidence_of(change: Change) -> str:
    """Returns the key of a change in the two tables."""
    [key] = [key for key in (*PROTOCOL_LINES, *BEHAVIOR_LINES) if key in change.after]
    return key


@pytest.mark.parametrize("change", changes_of("0.33"), ids=evidence_of)
def test_every_entry_of_the_versions_page_is_in_the_list(
    change: Change, changes: list[Difference]
) -> None:
    key = evidence_of(change)
    if key in BEHAVIOR_LINES:
        folder, function = BEHAVIOR_LINES[key]
        [line] = [
            line for line in text_of(changes).splitlines() if line.startswith(f"~ {folder}: ")
        ]
        assert function in re.split("[ ;]+", line)
        return
    names = {(change.kind, change.name) for change in changes}
    for expected in PROTOCOL_LINES[key]:
        assert expected in names


def test_the_details_of_the_list_are_those_of_the_sources(changes: list[Difference]) -> None:
    lines = text_of(changes).splitlines()
    assert (
        "+ profiler_kwargs of StartProfileRequest: type dict[str, Any] | None; default None"
        in lines
    )
    assert "~ output_mode of GenerateRequest: choices +derender" in lines
    assert "~ vllm:cache_config_info: labels +simple_cpu_offload_num_blocks" in lines
    assert (
        "~ POST /is_scaling_elastic_ep: keys +epoch +error +phase +requested_data_parallel_size"
        in lines
    )


def facts_of(texts: dict[str, str]) -> dict[tuple[str, str], Fact]:
    return {(fact.kind, fact.name): fact for fact in read_facts(Package(texts))}


def attributes_of(texts: dict[str, str], kind: str, name: str) -> dict[str, str]:
    return dict(facts_of(texts)[(kind, name)].attributes)


def test_options_are_read_from_calls_of_argparse() -> None:
    facts = facts_of(
        {
            OPTIONS_FILE: (
                "class EngineArgs:\n"
                "    def add_cli_args(parser):\n"
                "        parser.add_argument('--max_num_seqs', '-s', type=int, default=4 * 64)\n"
                "        parser.add_argument('--dtype', choices=['auto', *KINDS], default='auto')\n"
                "        parser.add_argument('--seed', type=int, default=current_platform.seed)\n"
                "        parser.add_argument(make_name(), type=int)\n"
                "        for name, kind in [('--old-a', str), ('--old-b', bool)]:\n"
                "            parser.add_argument(name, nargs='?')\n"
                "KINDS = ('half', 'float')\n"
            )
        }
    )
    options = {name: fact.attributes for (kind, name), fact in facts.items() if kind == "option"}
    assert options == {
        "--max-num-seqs": {"type": "int", "default": "256"},
        "--dtype": {"choices": "auto, float, half", "default": "'auto'"},
        "--seed": {"type": "int", "default": "unknown: current_platform.seed"},
        "unknown: make_name()": {},
        "--old-a": {"nargs": "'?'"},
        "--old-b": {"nargs": "'?'"},
    }


def test_options_and_keys_are_read_from_config_classes() -> None:
    texts = {
        "vllm/config/__init__.py": "from vllm.config.cache import CacheConfig, EventsConfig\n",
        "vllm/config/cache.py": (
            "Hash = Literal['sha256', 'xxhash']\n"
            "@config\n"
            "class CacheConfig:\n"
            "    block_size: Optional[int] = Field(default=16, gt=0)\n"
            "    hash: Hash = 'sha256'\n"
            "    events: EventsConfig | None = None\n"
            "@config\n"
            "class EventsConfig:\n"
            "    topic: str = ''\n"
            "    _private: int = 0\n"
            "    derived: int = field(default=0, init=False)\n"
        ),
        OPTIONS_FILE: (
            "from vllm.config import CacheConfig\n"
            "def add_cli_args(parser):\n"
            "    kwargs = get_kwargs(CacheConfig)\n"
            "    parser.add_argument('--block-size', **kwargs['block_size'])\n"
            "    parser.add_argument('--hash', **{**kwargs['hash'], 'default': None})\n"
            "    parser.add_argument('--events', **kwargs['events'])\n"
        ),
    }
    assert attributes_of(texts, "option", "--block-size") == {
        "type": "int | None",
        "default": "16",
        "limits": "gt 0",
    }
    assert attributes_of(texts, "option", "--hash") == {
        "type": "choice",
        "choices": "sha256, xxhash",
        "default": "None",
    }
    keys = [name for kind, name in facts_of(texts) if kind == "JSON key"]
    assert keys == ["--events.topic"]


def test_metrics_have_labels_and_buckets() -> None:
    texts = {
        "vllm/v1/metrics/loggers.py": (
            "class Logger:\n"
            "    def __init__(self):\n"
            "        labelnames = ['model_name', 'engine']\n"
            "        self.gauge = self._gauge_cls(name='vllm:running', labelnames=labelnames)\n"
            "        self.histogram = self._histogram_cls(\n"
            "            name='vllm:tokens', labelnames=labelnames + ['kind'],\n"
            "            buckets=make_buckets(max_model_len))\n"
            "    def make_counters(self):\n"
            "        rows = [('vllm:drafts', 'Help.'), ('vllm:accepted', 'Help.')]\n"
            "        self.counters = [self._counter_cls(name=name) for name, text in rows]\n"
        )
    }
    assert attributes_of(texts, "metric", "vllm:running") == {
        "type": "gauge",
        "labels": "model_name, engine",
    }
    assert attributes_of(texts, "metric", "vllm:tokens") == {
        "type": "histogram",
        "labels": "model_name, engine, kind",
        "buckets": "unknown: make_buckets(max_model_len)",
    }
    assert attributes_of(texts, "metric", "vllm:drafts_total") == {"type": "counter"}
    assert attributes_of(texts, "metric", "vllm:accepted_total") == {"type": "counter"}


def test_variables_have_types_and_defaults() -> None:
    texts = {
        "vllm/envs.py": (
            "if TYPE_CHECKING:\n"
            "    VLLM_PORT: Optional[int] = None\n"
            "environment_variables = {\n"
            "    'VLLM_PORT': lambda: int(os.getenv('VLLM_PORT', '8')),\n"
            "    'VLLM_MODE': env_with_choices('VLLM_MODE', 'a', ['a', 'b']),\n"
            "    'VLLM_ROOT': find_root,\n"
            "}\n"
        )
    }
    assert attributes_of(texts, "environment variable", "VLLM_PORT") == {
        "type": "int | None",
        "default": "'8'",
    }
    assert attributes_of(texts, "environment variable", "VLLM_MODE") == {
        "default": "'a'",
        "choices": "a, b",
    }
    assert attributes_of(texts, "environment variable", "VLLM_ROOT") == {"default": "unknown"}


def test_registered_names() -> None:
    facts = facts_of(
        {
            "vllm/tool_parsers/__init__.py": (
                "from vllm.tool_parsers.base import ToolParserManager\n"
                "_TOOL_PARSERS_TO_REGISTER = {'hermes': ('hermes', 'Hermes')}\n"
            ),
            "vllm/reasoning/qwen3.py": (
                "@ReasoningParserManager.register_module(['qwen3', 'qwen4'])\nclass Qwen: pass\n"
            ),
            "vllm/model_executor/layers/quantization/__init__.py": (
                "QuantizationMethods = Literal['awq', 'fp8']\n"
            ),
        }
    )
    assert set(facts) == {
        ("tool parser", "hermes"),
        ("reasoning parser", "qwen3"),
        ("reasoning parser", "qwen4"),
        ("quantization", "awq"),
        ("quantization", "fp8"),
    }


MODEL_CLASSES = {
    "vllm/model_executor/models/registry.py": (
        "_TEXT_GENERATION_MODELS = {'QwenForCausalLM': ('qwen', 'Qwen')}\n"
        "_OTHER_MODELS = {\n"
        "    'BertModel': ('bert', 'Bert'),\n"
        "    'ColBERT': ('bert', 'ColBert'),\n"
        "    'Reward': ('bert', 'Reward'),\n"
        "    'Converted': ('bert', 'Converted'),\n"
        "    'OmniModel': ('vllm.models.omni', 'Omni'),\n"
        "    'Drafter': ('qwen', 'Drafter'),\n"
        "    **{k: v for k, v in _TEXT_GENERATION_MODELS.items()},\n"
        "}\n"
        "_PREVIOUSLY_SUPPORTED_MODELS = {'OldModel': '0.9'}\n"
        "_VLLM_MODELS = {**_TEXT_GENERATION_MODELS, **_OTHER_MODELS}\n"
    ),
    "vllm/model_executor/models/interfaces.py": (
        "class SupportsMultiModal:\n    supports_multimodal: ClassVar[Literal[True]] = True\n"
        "class SupportsLateInteraction:\n    score_type: ClassVar[str] = 'late-interaction'\n"
    ),
    "vllm/model_executor/models/qwen.py": (
        "class Qwen(nn.Module):\n"
        "    def forward(self, input_ids, positions): pass\n"
        "    def compute_logits(self, hidden_states): pass\n"
        "class Drafter(Qwen):\n"
        "    def forward(self, hidden_states): pass\n"
    ),
    "vllm/model_executor/models/bert.py": (
        "from vllm.poolers import *\n"
        "from vllm.other import *\n"
        "from .interfaces import SupportsLateInteraction\n"
        "from .qwen import Qwen\n"
        "class Bert(nn.Module):\n"
        "    is_pooling_model = True\n"
        "    def __init__(self, config):\n"
        "        self.pooler = self._build_pooler(config)\n"
        "    def _build_pooler(self, config):\n"
        "        return DispatchPooler.for_embedding(config)\n"
        "class ColBert(Bert, SupportsLateInteraction):\n"
        "    def __init__(self, config):\n"
        "        self.pooler = pooler_for_token_embed(config)\n"
        "class Reward(Bert):\n"
        "    def __init__(self, config):\n"
        "        pooler = RewardPooler()\n"
        "        self.pooler = pooler\n"
        "if TYPE_CHECKING:\n    _Base = Qwen\nelse:\n    _Base = as_seq_cls_model(Qwen)\n"
        "class Converted(_Base): pass\n"
    ),
    "vllm/other.py": "class Other: pass\n",
    "vllm/poolers/__init__.py": "from .first import *\nfrom .second import *\n",
    "vllm/poolers/first.py": "class First: pass\n",
    "vllm/poolers/second.py": (
        "class DispatchPooler:\n"
        "    @classmethod\n"
        "    def for_embedding(cls, config):\n"
        "        return cls({'token_embed': 1, 'embed': 2})\n"
        "class RewardPooler:\n"
        "    def get_supported_tasks(self):\n"
        "        return {'token_classify'}\n"
    ),
    "vllm/models/omni.py": (
        "from vllm.model_executor.models.interfaces import SupportsMultiModal\n"
        "from vllm.model_executor.models.qwen import Qwen\n"
        "class Information(Base):\n"
        "    def get_supported_mm_limits(self):\n"
        "        return {**super().get_supported_mm_limits(), 'audio': None}\n"
        "class Base:\n"
        "    def get_supported_mm_limits(self):\n"
        "        return {'image': 1}\n"
        "@MULTIMODAL_REGISTRY.register_processor(Processor, info=Information)\n"
        "class Omni(Qwen, SupportsMultiModal): pass\n"
    ),
    "vllm/config/model.py": (
        "_SUFFIX_TO_DEFAULTS: list = [\n"
        "    ('ForCausalLM', ('generate', 'none')),\n"
        "    ('RewardModel', ('pooling', 'embed')),\n"
        "    ('Model', ('pooling', 'embed')),\n"
        "]\n"
    ),
}


def test_classes_of_models_say_what_the_models_do() -> None:
    facts = facts_of(MODEL_CLASSES)
    does = {
        name: fact.attributes["does"]
        for (kind, name), fact in facts.items()
        if kind == "architecture"
    }
    assert does == {
        "QwenForCausalLM": "generate",
        "BertModel": "embed token_embed",
        "ColBERT": "token_embed late-interaction",
        "Reward": "token_classify",
        "Converted": "generate classify token_classify cross-encoder",
        "OmniModel": "generate multimodal image audio",
        "Drafter": "",
    }
    ends = {
        name: fact.attributes["does"] for (kind, name), fact in facts.items() if kind == "suffix"
    }
    assert ends == {
        "ForCausalLM": "generate none",
        "RewardModel": "pooling embed",
        "Model": "pooling embed",
    }


def test_releases_without_conversions_compare_ends_first() -> None:
    text = (
        "class ModelConfig:\n"
        "    def _resolve_runner(self):\n"
        "        suffix_to_preferred_runner: list = [\n"
        "            ('ForCausalLM', 'generate'),\n"
        "            ('RewardModel', 'pooling'),\n"
        "        ]\n"
    )
    facts = facts_of({"vllm/config.py": text})
    assert {name: fact.attributes["does"] for (_, name), fact in facts.items()} == {
        "ForSequenceClassification": "pooling classify first",
        "ForCausalLM": "generate none first",
        "RewardModel": "pooling embed first",
    }


def test_end_of_an_architecture_that_hides_a_longer_one_is_an_error() -> None:
    text = "_SUFFIX_TO_DEFAULTS = [('Model', ('a', 'b')), ('RewardModel', ('a', 'b'))]\n"
    with pytest.raises(ValueError, match="Model hide longer ends"):
        facts_of({"vllm/config/model.py": text})


def test_names_that_stand_for_an_object_are_those_that_validators_look_up() -> None:
    config = (
        "NAMES: dict = {'fp8': key(), 'mxfp8': key()}\n"
        "def _coerce(v):\n    return NAMES[v]\n"
        "KeyField = Annotated[Key, Schema(_coerce)]\n"
        "@config\n"
        "class Spec:\n    weight: KeyField = None\n"
        "@config\n"
        "class QuantArgs:\n"
        "    linear: Spec | None = None\n"
        "    moe: Spec | None = None\n"
        "    ignore: list[str] = Field(default_factory=list)\n"
        "    @field_validator('linear', 'moe', mode='before')\n"
        "    @classmethod\n"
        "    def _coerce_spec(cls, v, info):\n"
        "        if v in SHORT:\n            return getattr(SHORT[v], info.field_name)\n"
        "        return Spec(weight=_coerce(v))\n"
        "    @field_validator('ignore')\n"
        "    @classmethod\n"
        "    def _check(cls, v):\n        return NAMES[v]\n"
        "SHORT: dict = {'fp8_moe': QuantArgs(moe=Spec()), 'mxfp8': QuantArgs(moe=Spec())}\n"
    )
    texts = {
        "vllm/config/__init__.py": "from .quantization import QuantArgs\n",
        "vllm/config/quantization.py": config,
        "vllm/engine/arg_utils.py": (
            "from vllm.config import QuantArgs\n"
            "def add_cli_args(parser):\n"
            "    parser.add_argument('--quant-config', type=QuantArgs)\n"
        ),
    }
    names = {
        name: fact.attributes.get("shorthands", "")
        for (kind, name), fact in facts_of(texts).items()
        if kind == "JSON key"
    }
    assert names == {
        "--quant-config.linear": "fp8",
        "--quant-config.linear.weight": "fp8, mxfp8",
        "--quant-config.moe": "fp8, fp8_moe, mxfp8",
        "--quant-config.moe.weight": "fp8, mxfp8",
        "--quant-config.ignore": "",
    }


def test_kv_events_routes_and_errors() -> None:
    facts = facts_of(
        {
            "vllm/distributed/kv_events.py": (
                "class Event(msgspec.Struct):\n    ts: float\n"
                "class Stored(Event):\n    medium: str | None\n"
            ),
            "vllm/entrypoints/api_router.py": (
                "router = APIRouter(prefix='/v2')\n"
                "@router.post('/pause')\n"
                "async def pause(raw_request: Request, mode: str = 'abort'):\n"
                "    if not mode: raise ValueError(f'invalid mode {mode}')\n"
                "    return JSONResponse({'status': 'paused'})\n"
            ),
        }
    )
    assert ("KV event", "medium") in facts
    assert facts[("route", "POST /v2/pause")].attributes == {
        "parameters": "mode: str",
        "keys": "status",
    }
    assert ("error", "invalid mode {}") in facts


def test_code_is_compared_without_comments_docstrings_annotations_and_logs() -> None:
    path = "vllm/entrypoints/serving.py"
    old = {path: "class Serving:\n    def answer(self, n):\n        return n + 1\n"}
    same = {
        path: (
            "class Serving:\n    def answer(self, n: int) -> int:\n        '''Text.'''\n"
            "        logger.debug('answer')  # comment\n        return n + 1\n"
        )
    }
    changed = {path: "class Serving:\n    def answer(self, n):\n        return n + 2\n"}

    def lines(texts: dict[str, str]) -> list[str]:
        changes = differences(read_facts(Package(old)), read_facts(Package(texts)))
        return text_of(changes).splitlines()

    assert lines(same) == []
    assert lines(changed)[1:] == ["~ vllm/entrypoints: Serving answer"]


def test_private_functions_are_named_where_no_public_function_of_the_folder_changed() -> None:
    def fact_of(folder: str, digests: dict[str, str]) -> Fact:
        return Fact("code", f"Serving {folder}", attributes=digests, area=folder)

    old = [
        fact_of("chat", {"answer": "1", "_find": "1"}),
        fact_of("pooling", {"_find": "1", "_gone": "1"}),
    ]
    new = [fact_of("chat", {"answer": "2", "_find": "2"}), fact_of("pooling", {"_find": "2"})]
    changes = differences(old, new)
    assert text_of(changes).splitlines()[1:] == [
        "~ chat: Serving chat answer",
        "~ pooling: Serving pooling _find -_gone",
    ]
    assert [dict(change.new) for change in changes] == [
        {"answer": "2", "_find": "2"},
        {"_find": "2", "_gone": ""},
    ]


def test_names_without_details_share_a_line() -> None:
    old = [Fact("environment variable", name) for name in ("VLLM_A", "VLLM_B")]
    new = [
        Fact("environment variable", "VLLM_C", attributes={"default": "'0'"}),
        Fact("error", "invalid mode"),
        Fact("error", "invalid name"),
    ]
    assert text_of(differences(old, new)).splitlines() == [
        "# Environment variables",
        "- VLLM_A, VLLM_B",
        "+ VLLM_C: default '0'",
        "",
        "# Texts of errors",
        "+ invalid mode",
        "+ invalid name",
    ]


def test_fields_that_change_alike_and_new_classes_are_one_line() -> None:
    old = [Fact("field", "user", owner, {"type": "str"}) for owner in ("Chat", "Completion")]
    new = [
        *(Fact("field", "user", owner, {"type": "str | None"}) for owner in ("Chat", "Completion")),
        Fact("field", "input", "Decision", {"type": "str"}),
        Fact("field", "model", "Decision", {"type": "str"}),
    ]
    assert [difference.line() for difference in differences(old, new)] == [
        "+ Decision: a class with input, model",
        "~ user of Chat, Completion: type str -> str | None",
    ]


def test_folder_wheel_and_source_distribution_are_read_alike(tmp_path: Path) -> None:
    folder = tmp_path / "vllm-1.0"
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "envs.py").write_text("environment_variables = {'VLLM_PORT': None}\n")
    (folder / "vllm" / "notes.txt").write_text("not Python")
    wheel = tmp_path / "vllm-1.0.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(folder / "vllm" / "envs.py", "vllm/envs.py")
    source = tmp_path / "vllm-1.0.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        archive.add(folder, "vllm-1.0")
    expected = [Fact("environment variable", "VLLM_PORT", attributes={"default": "unknown"})]
    for path in (folder, wheel, source):
        assert read_facts(read_package(path)) == expected


def test_the_command_prints_text_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version, variable in (("1.0", "VLLM_OLD"), ("2.0", "VLLM_NEW")):
        (tmp_path / version / "vllm").mkdir(parents=True)
        text = f"environment_variables = {{'{variable}': lambda: os.getenv('{variable}', '0')}}\n"
        (tmp_path / version / "vllm" / "envs.py").write_text(text)
    output = tmp_path / "differences.json"
    assert main([str(tmp_path / "1.0"), str(tmp_path / "2.0"), "--json", str(output)]) == 0
    printed = capsys.readouterr().out
    assert printed == "# Environment variables\n- VLLM_OLD\n+ VLLM_NEW: default '0'\n"
    changes = json.loads(output.read_text())
    assert [(change["change"], change["name"]) for change in changes] == [
        ("came", "VLLM_NEW"),
        ("went", "VLLM_OLD"),
    ]


def test_a_folder_without_vllm_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path} contains no files of the package vllm\n"


def option_facts_of(*names: str) -> list[Fact]:
    return [Fact("option", name, attributes={"type": "int"}) for name in names]


def test_history_has_periods_and_replacements() -> None:
    releases = {
        "0.13.0": option_facts_of("--always", "--old", "--returns"),
        "0.14.0": option_facts_of("--always", "--old"),
        "0.14.1": option_facts_of("--always", "--new", "--returns", "unknown: make_name()"),
    }
    history = History()
    for release, facts in releases.items():
        add(history, release, facts, {"--old": "--new"})
    assert {name: (life.periods, life.replacement) for name, life in history.options.items()} == {
        "--always": ([("", "")], ""),
        "--new": ([("0.14.1", "")], ""),
        "--old": ([("", "0.14.1")], "--new"),
        "--returns": ([("", "0.14"), ("0.14.1", "")], ""),
    }
    assert history.releases == {"0.13": ["0.13.0"], "0.14": ["0.14.0", "0.14.1"]}


def test_replacements_are_read_from_deprecation_texts() -> None:
    package = Package(
        {
            OPTIONS_FILE: (
                "parser.add_argument('--old-one', help='Deprecated, use `--new_one` instead.')\n"
                "warn('--second-old is deprecated and will be removed. '\n"
                "     'Please use --config.second_new instead.')\n"
                "warn('To limit memory, use --max-len.')\n"
            )
        }
    )
    assert replacements_in(package) == {
        "--old-one": "--new-one",
        "--second-old": "--config.second_new",
    }


BUCKETS_FILE = "vllm/v1/metrics/buckets.py"


def metrics_of(texts: dict[str, str]) -> dict[str, dict[str, str]]:
    return {
        name: dict(fact.attributes)
        for (kind, name), fact in facts_of(texts).items()
        if kind == "metric"
    }


def test_labels_and_buckets_of_metrics_are_followed_through_calls() -> None:
    metrics = metrics_of(
        {
            "vllm/v1/metrics/loggers.py": (
                "from vllm.v1.metrics.buckets import histogram_buckets\n"
                "class Logger:\n"
                "    def __init__(self, config):\n"
                "        labelnames = ['model_name', 'engine']\n"
                "        self.reason = 'reason'\n"
                "        self.prom = Prom(config, labelnames)\n"
                "        buckets = [1, 2, 4]\n"
                "        self._histogram_cls('vllm:a', buckets=buckets[1:], labelnames=labelnames)\n"
                "        buckets = [2**i for i in range(1, 4)]\n"
                "        self._histogram_cls('vllm:b', buckets=buckets)\n"
                "        waits = histogram_buckets('waits')\n"
                "        self._histogram_cls('vllm:c', buckets=waits)\n"
                "        tokens = histogram_buckets('request_tokens', max_model_len=9)\n"
                "        self._histogram_cls('vllm:d', buckets=tokens)\n"
                "        self._histogram_cls('vllm:e', buckets=build_1_2_5_buckets(9))\n"
                "        self._gauge_cls('vllm:f', 'A text.', [self.reason])\n"
            ),
            "vllm/connector.py": (
                "class Prom:\n"
                "    def __init__(self, config, labelnames):\n"
                "        self._labels = labelnames\n"
                "    def more(self):\n"
                "        self._counter_cls('vllm:g', labelnames=self._labels + ['kind'])\n"
                "        for name, text in [('hits', 'Hits.'), ('misses', 'Misses.')]:\n"
                "            self._counter_cls(f'vllm:cache_{name}')\n"
            ),
            BUCKETS_FILE: "WAITS = (0.5, 1)\n_STATIC_FAMILY_DEFAULTS = {'waits': WAITS}\n",
        }
    )
    assert metrics == {
        "vllm:a": {"type": "histogram", "labels": "model_name, engine", "buckets": "2, 4"},
        "vllm:b": {"type": "histogram", "buckets": "2, 4, 8"},
        "vllm:c": {"type": "histogram", "buckets": "0.5, 1"},
        "vllm:d": {"type": "histogram", "buckets": "1-2-5"},
        "vllm:e": {"type": "histogram", "buckets": "1-2-5"},
        "vllm:f": {"type": "gauge", "labels": "reason"},
        "vllm:g_total": {"type": "counter", "labels": "model_name, engine, kind"},
        "vllm:cache_hits_total": {"type": "counter"},
        "vllm:cache_misses_total": {"type": "counter"},
    }


def test_conditions_of_metrics_are_those_around_them_and_before_them() -> None:
    metrics = metrics_of(
        {
            "vllm/metrics.py": (
                "def make(self, config):\n"
                "    Gauge('vllm:a')\n"
                "    if not self.enabled:\n"
                "        return\n"
                "    if config.lora:\n"
                "        Gauge('vllm:b')\n"
                "    else:\n"
                "        Gauge('vllm:c')\n"
            )
        }
    )
    conditions = {name: attributes.get("condition") for name, attributes in metrics.items()}
    assert conditions == {
        "vllm:a": None,
        "vllm:b": "self.enabled and config.lora",
        "vllm:c": "self.enabled and not (config.lora)",
    }


def test_metrics_of_the_old_engine_count_only_where_v1_lacks_them() -> None:
    metrics = metrics_of(
        {
            "vllm/engine/metrics.py": "Gauge('vllm:a', labelnames=['old'])\nGauge('vllm:b')\n",
            "vllm/v1/metrics/loggers.py": "Gauge('vllm:a', labelnames=['new'])\n",
        }
    )
    assert metrics == {"vllm:a": {"type": "gauge", "labels": "new"}, "vllm:b": {"type": "gauge"}}


def test_arguments_of_frontend_options_that_are_changed_later_count() -> None:
    facts = facts_of(
        {
            "vllm/entrypoints/cli_args.py": (
                "class FrontendArgs:\n"
                "    origins: list[str] = field(default_factory=list)\n"
                "    modules: list[str] | None = None\n"
                "    plain: list[str] | None = None\n"
                "    def add_cli_args(parser):\n"
                "        frontend_kwargs = get_kwargs(FrontendArgs)\n"
                "        frontend_kwargs['origins']['type'] = json.loads\n"
                "        del frontend_kwargs['origins']['nargs']\n"
                "        frontend_kwargs['modules']['type'] = optional_type(str)\n"
            )
        }
    )
    assert facts[("option", "--origins")].attributes == {
        "type": "json.loads",
        "nargs": "None",
        "default": "[]",
    }
    assert facts[("option", "--modules")].attributes == {
        "type": "optional_type(str)",
        "nargs": "'+'",
        "default": "None",
    }
    assert facts[("option", "--plain")].attributes == {
        "type": "list[str] | None",
        "default": "None",
    }


def test_names_of_an_enum_are_choices() -> None:
    attributes = attributes_of(
        {
            "vllm/entrypoints/cli_args.py": (
                "class Backend(Enum, metaclass=Meta):\n    FAST = 'a.b'\n    SLOW = 'a.c'\n"
                "class FrontendArgs:\n    backend: Backend | None = None\n"
                "def make(): get_kwargs(FrontendArgs)\n"
            )
        },
        kind="option",
        name="--backend",
    )
    assert attributes["choices"] == "FAST, SLOW"


def test_fields_have_their_names_in_json() -> None:
    facts = read_facts(
        Package(
            {
                "vllm/entrypoints/protocol.py": (
                    "class Format(BaseModel):\n"
                    "    schema_: dict = Field(alias='schema')\n"
                    "    inner: int = Field(default=0, exclude=True)\n"
                    "class Message(TypedDict, total=False):\n"
                    "    role: Required[str]\n"
                    "    name: str\n"
                ),
                "vllm/sampling_params.py": (
                    "@dataclass\nclass Params:\n    n: int = 1\n    _backend: str = ''\n"
                ),
            }
        )
    )
    fields = {
        (fact.owner, fact.name): fact.attributes["default"]
        for fact in facts
        if fact.kind == "field"
    }
    assert fields == {
        ("Format", "schema"): "required",
        ("Message", "role"): "required",
        ("Message", "name"): "absent",
        ("Params", "n"): "1",
        ("Params", "_backend"): "''",
    }


def test_mounted_applications_are_routes_and_other_servers_have_none() -> None:
    router = "@router.get('/{}')\ndef answer(): pass\n"
    facts = facts_of(
        {
            "vllm/entrypoints/metrics.py": "route = Mount('/metrics', make_asgi_app())\n",
            "vllm/entrypoints/serve/api_router.py": router.format("health"),
            "vllm/entrypoints/launchers/dp_supervisor.py": router.format("ready"),
        }
    )
    assert {name for kind, name in facts if kind == "route"} == {"GET /metrics", "GET /health"}
