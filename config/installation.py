"""Kind of installation, so that messages have the right command and packages."""

from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from config.declaration import ConfigError

Extra = Literal["calibrate", "engine", "fleet", "grpc", "tracing"]
"""Optional part: an extra of pyproject.toml, and a requirements file."""

IS_CLONE = (Path(__file__).resolve().parent.parent / "requirements.txt").is_file()
"""True in a clone: a wheel or an image has no requirements files."""
COMMAND = "python -m app" if IS_CLONE else "understudy"
PACKAGES: Mapping[Extra, tuple[str, ...]] = {
    "calibrate": ("cma", "numpy"),
    "engine": ("torch", "safetensors", "llguidance"),
    "fleet": ("matplotlib",),
    "grpc": ("smg_grpc_proto", "grpc_health", "grpc_reflection", "h2"),
    "tracing": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
"""Optional part -> modules that it imports."""


def install(extra: Extra) -> str:
    what = f"-r requirements-{extra}.txt" if IS_CLONE else f"'vllm-understudy[{extra}]'"
    return f"pip install {what}"


def missing(extra: Extra) -> list[str]:
    absent = []
    for module in PACKAGES[extra]:
        with suppress(ImportError):  # the module's package is missing
            if find_spec(module) is not None:
                continue
        absent.append(module)
    return absent


def check_installed(extra: Extra, wanted_by: str) -> None:
    """Raises ConfigError, in one line, if an optional part for `wanted_by` is not installed."""
    if names := missing(extra):
        raise ConfigError(f"{wanted_by}: needs {' and '.join(names)}: {install(extra)}")
