"""pytest plugin of vLLM's test environment: the tests start Understudy instead of vLLM.

vLLM's tests start servers through classes of ``tests/utils.py``, and this plugin replaces how these
classes start a process. Tokenizers are Understudy's, because tests must not download a model, and
an adapter of the hub is a folder with a configuration.
"""

import importlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import requests
import tests.utils as server_classes
import transformers
import vllm.tokenizers
import vllm.tokenizers.registry

CHECKOUT = Path(os.environ["UNDERSTUDY_CHECKOUT"])
VERSION = os.environ["UNDERSTUDY_VLLM_VERSION"]
PYTHON = CHECKOUT / ".venv" / "bin" / "python"
TOKENIZER = CHECKOUT / "app" / "core" / "text" / "data"
SERVER_LOG = Path("servers.log")
STOP_SECONDS = 8.0
START_SECONDS = 20
HIDDEN_VARIABLES = ("HF_", "PYTHON", "VIRTUAL")
"""Beginnings of variables of the tests' environment that would confuse a server."""
FLAGS: Mapping[str, Sequence[str]] = {
    "/instrumentator/": ("--inter-token-latency", "5ms"),
    "/derender/": ("--enable-scale-out",),
    "/pooling/scoring/test_late_interaction": (
        "--runner",
        "pooling",
        "--pooler-config.task",
        "token_embed",
    ),
    "/render/": ("--enable-scale-out",),
    "/test_pause_multi_frontend": ("--inter-token-latency", "5ms"),
    "/test_pause_resume": ("--timing", "steps"),
    "/test_sleep": ("--inter-token-latency", "5ms"),
    "/token_in_token_out/": ("--inter-token-latency", "5ms"),
}
"""Flags by a part of a test's path: what vLLM reads from a model, or from a slow machine."""
MODEL = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 32768}
ADAPTER = {
    "base_model_name_or_path": "base",
    "lora_alpha": 16,
    "peft_type": "LORA",
    "r": 8,
    "target_modules": ["q_proj", "v_proj"],
}

RL_TESTS = "tests.entrypoints.rl.conftest"
"""Module with a server fixture of its own, which older releases do not have."""
server_arguments: Any = None
if Path("tests/entrypoints/rl/conftest.py").exists():
    server_arguments = importlib.import_module(RL_TESTS)
load_tokenizer = transformers.AutoTokenizer.from_pretrained
initialize_server = server_classes.RemoteVLLMServer.__init__


def find_tokenizer(name: object = None, *args: Any, **options: Any) -> Any:
    """Returns the tokenizer of a local folder, or Understudy's for a name of the hub."""
    if os.path.isdir(str(name)):
        return load_tokenizer(name, *args, **options)
    return load_tokenizer(str(TOKENIZER))


def find_server_tokenizer(name: object = None, *args: Any, **options: Any) -> Any:
    """Returns a tokenizer as vLLM's `get_tokenizer`, whose name may be a keyword."""
    return find_tokenizer(options.get("tokenizer_name", name))


def adapter_folder(*args: Any, repo_id: str = "adapter", **options: Any) -> str:
    """Returns a folder with the configurations of an adapter and a model, not a download."""
    folder = Path(tempfile.gettempdir()) / f"judge-{repo_id.replace('/', '-')}"
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(ADAPTER))
    (folder / "config.json").write_text(json.dumps(MODEL))
    return str(folder)


def flags_of(test: str) -> list[str]:
    """Returns the flags for the server of a test."""
    flags: list[str] = []
    for part, values in FLAGS.items():
        if part in test:
            flags += values
    return flags


def start_server(
    self: Any, model: str, vllm_serve_args: Sequence[str], env_dict: Mapping[str, str] | None
) -> None:
    """Starts Understudy with the arguments of a test."""
    self.proc = start_process(model, vllm_serve_args, env_dict or {})


def start_process(
    model: str, arguments: Sequence[str], variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts Understudy with arguments of vLLM."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(HIDDEN_VARIABLES)
    }
    environment["HF_HUB_OFFLINE"] = "1"
    environment.update(variables)
    command = [str(PYTHON), "-m", "app", "serve", "--model", model, *arguments]
    command += ["--vllm-version", VERSION]
    command += flags_of(os.environ.get("PYTEST_CURRENT_TEST", ""))
    if "--host" not in command and "--uds" not in command:
        command += ["--host", "127.0.0.1"]
    if "--tokenizer" not in command:
        command += ["--tokenizer", str(TOKENIZER)]
    with SERVER_LOG.open("a") as log:
        print(f"\n$ {' '.join(command)}", file=log, flush=True)
        return subprocess.Popen(
            command,
            env=environment,
            cwd=CHECKOUT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@contextmanager
def serve(
    extra_args: Sequence[str] | None = None,
    port: int = 8770,
    timeout: float = START_SECONDS,
    dummy_weights: bool = False,
) -> Iterator[str]:
    """Starts a server as the tests of reinforcement learning do, and yields its address."""
    arguments = list(server_arguments._DUMMY_ARGS if dummy_weights else server_arguments._BASE_ARGS)
    arguments += ["--port", str(port), "--served-model-name", "m", *(extra_args or [])]
    process = start_process(server_arguments.MODEL_NAME, arguments, {"VLLM_SERVER_DEV_MODE": "1"})
    url = f"http://localhost:{port}"
    try:
        wait_for(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Waits until a server is healthy.

    Raises:
        RuntimeError: The server has ended, or takes too long.
    """
    for _ in range(10 * START_SECONDS):
        try:
            if requests.get(f"{url}/health", timeout=3).status_code == 200:
                return
        except requests.ConnectionError:
            time.sleep(0.1)
        if process.poll() is not None:
            raise RuntimeError("the server has ended")
    raise RuntimeError(f"the server has not started in {START_SECONDS} seconds")


def initialize(self: Any, *args: Any, **options: Any) -> None:
    """Initializes a server, and waits less long for its start than for that of vLLM."""
    options["max_wait_seconds"] = START_SECONDS
    initialize_server(self, *args, **options)


transformers.AutoTokenizer.from_pretrained = find_tokenizer
vllm.tokenizers.get_tokenizer = find_server_tokenizer
vllm.tokenizers.registry.get_tokenizer = find_server_tokenizer
server_classes.get_tokenizer = find_server_tokenizer
if server_arguments is not None:
    server_arguments.server = serve
hub: Any = huggingface_hub
hub.snapshot_download = adapter_folder
hub.HfApi.snapshot_download = adapter_folder
for server_class in (server_classes.RemoteOpenAIServer, server_classes.RemoteLaunchRenderServer):
    server_class._start_server = start_server
server_classes.RemoteVLLMServer.__init__ = initialize
for server_class in (
    server_classes.RemoteVLLMServer,
    server_classes.RemoteOpenAIServer,
    server_classes.RemoteLaunchRenderServer,
):
    server_class._pre_download_model = lambda self, model, args: None
    server_class._get_process_termination_timeout = lambda self: STOP_SECONDS
