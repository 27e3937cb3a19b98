"""Chat templates that people use, from the source distributions of llama-cpp-python and vLLM."""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from scripts.version_diff.download import download

PACKAGE = "llama-cpp-python"
"""Its source distribution contains llama.cpp, which has templates of many models."""
SUFFIX = ".jinja"


def templates(folder: Path, version: str) -> dict[str, str]:
    """Returns the templates by name; downloads them into `folder` if it does not exist.

    Raises:
        subprocess.CalledProcessError: pip cannot download the package.
        DownloadError: There is no source distribution of vLLM.
    """
    if not folder.exists():
        with tempfile.TemporaryDirectory() as name:
            unpacked = Path(name)
            sources = _templates_of_llama_cpp(unpacked) | _templates_of_vllm(unpacked, version)
        folder.mkdir(parents=True)
        for file_name, source in sources.items():
            (folder / file_name).write_text(source, encoding="utf-8")
    files = sorted(folder.glob(f"*{SUFFIX}"))
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def _templates_of_llama_cpp(folder: Path) -> dict[str, str]:
    command = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary")
    subprocess.run((*command, PACKAGE, "--dest", str(folder), PACKAGE), check=True)
    found: dict[str, str] = {}
    for archive in folder.glob("*.tar.gz"):
        with tarfile.open(archive) as content:
            for member in content:
                source = content.extractfile(member) if member.name.endswith(SUFFIX) else None
                if source is not None:
                    found[f"llama.cpp--{Path(member.name).name}"] = source.read().decode()
    return found


def _templates_of_vllm(folder: Path, version: str) -> dict[str, str]:
    target = folder / "vllm"
    target.mkdir()
    sources = download(version, target)
    return {
        f"vllm--{file.name}": file.read_text(encoding="utf-8")
        for file in sources.rglob(f"*{SUFFIX}")
        if "rust" not in file.parts
    }
