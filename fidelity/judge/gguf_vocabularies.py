"""`fidelity.judge.gguf_vocabularies`: compares tokenizers of GGUF files with the vectors of llama.cpp.

The source distribution of llama-cpp-python has vocabularies (`ggml-vocab-*.gguf`), and for most of
them texts (`.inp`) with their token ids (`.out`). A vocabulary that is not supported has to be
refused by its name.
"""

import subprocess
import sys
import tarfile
from pathlib import Path

from app.core.built_in import read_tokenizer
from app.core.text.base import TokenizerLoadError
from app.core.text.huggingface import LocalTokenizer

PACKAGE = "llama-cpp-python"
FOLDER = Path(".judge/gguf")
SEPARATOR = "\n__ggml_vocab_test__\n"
SHOWN = 3


def vocabularies(folder: Path) -> list[Path]:
    """Returns the vocabularies of the source distribution, which is downloaded once."""
    files = sorted(folder.glob("ggml-vocab-*.gguf"))
    if files:
        return files
    folder.mkdir(parents=True, exist_ok=True)
    command = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE)
    subprocess.run((*command, "--dest", str(folder), PACKAGE), check=True)
    for archive in folder.glob("*.tar.gz"):
        with tarfile.open(archive) as content:
            for member in content:
                name = Path(member.name).name
                source = content.extractfile(member) if name.startswith("ggml-vocab-") else None
                if source is not None:
                    (folder / name).write_bytes(source.read())
        archive.unlink()
    return sorted(folder.glob("ggml-vocab-*.gguf"))


def vectors(file: Path) -> list[tuple[str, list[int]]]:
    """Returns the texts for a vocabulary with their token ids; empty without vectors."""
    texts_file = file.with_name(f"{file.name}.inp")
    if not texts_file.exists():
        return []
    texts = texts_file.read_bytes().decode().split(SEPARATOR)
    lines = file.with_name(f"{file.name}.out").read_text("utf-8").split("\n")
    return [
        (text, [int(number) for number in line.split()])
        for text, line in zip(texts, lines, strict=False)
    ]


def judge(file: Path) -> tuple[str, bool]:
    """Returns a line about a vocabulary, and whether it is refused by name or agrees."""
    expected = vectors(file)
    try:
        tokenizer = LocalTokenizer.from_path(file, read_file=read_tokenizer)
    except TokenizerLoadError as error:
        return f"{file.name}: refused: {error}", file.name in str(error) and not expected
    wrong = [text for text, ids in expected if tokenizer.encode(text) != ids]
    lines = [f"{file.name}: {len(expected) - len(wrong)} of {len(expected)} vectors agree"]
    lines += [f"    {text[:80]!r}" for text in wrong[:SHOWN]]
    return "\n".join(lines), not wrong


def main() -> int:
    """Prints a line for each vocabulary; returns 1 if any is wrong."""
    files = vocabularies(FOLDER)
    outcomes = [judge(file) for file in files]
    for line, _ in outcomes:
        print(line)
    good = sum(is_good for _, is_good in outcomes)
    print(f"{good} of {len(files)} vocabularies are read or refused by name, and agree")
    return 0 if files and good == len(files) else 1


if __name__ == "__main__":
    sys.exit(main())
