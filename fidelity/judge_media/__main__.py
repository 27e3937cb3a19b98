"""Compares the tokens of images with those of a real vLLM's processors.

    $ python -m fidelity.judge_media                            # 400 images of all models
    $ python -m fidelity.judge_media --only internvl --count 50 --seed 2

The files of the models are written by hand (`models.py`), so that neither weights nor the internet
are needed beyond the packages of `fidelity.oracle` and torchvision's Python files. The exit
status is 1 if fewer images than `SHARE` have equal tokens.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from app.extensions.media.facts import facts_of
from app.extensions.media.rules import RuleError
from app.extensions.media.tracks import Film
from fidelity.judge_media.files import write_files
from fidelity.judge_media.models import JudgedModel, judged_models
from fidelity.oracle.install import install, python_of
from fidelity.oracle.servers import VLLM_VARIABLES

HERE = Path(__file__).parent
FOLDER = Path(".judge/media")
VERSION = "0.32.0"
COUNT = 400
SEED = 1
SHARE = 0.98
"""Minimum share of equal answers."""
PACKAGES = ("torchvision==0.28.0", "num2words==0.5.14", "docopt==0.6.2")
"""Packages of processors that the oracle lacks; only their Python files are used.

The release of torchvision is that of the oracle's torch.
"""
MAX_SIDE = 4_000
"""Pixels."""
MAX_FILM_SIDE = 480
MAX_FILM_SECONDS = 40
MAX_SAMPLES = 40 * 16_000
"""Samples of the longest sound."""
EXTREME_SHARE = 0.15
"""Share of long and thin images, beside photographs and small icons."""
ARGUMENTS: dict[str, tuple[dict[str, Any], ...]] = {
    "Qwen/Qwen2-VL-7B-Instruct": ({"max_pixels": 200_704}, {"min_pixels": 1_003_520}),
    "Qwen/Qwen2.5-VL-7B-Instruct": ({"max_pixels": 1_003_520},),
    "Qwen/Qwen3-VL-4B-Instruct": ({"size": {"shortest_edge": 4096, "longest_edge": 1_048_576}},),
    "OpenGVLab/InternVL3-8B": ({"max_dynamic_patch": 4}, {"use_thumbnail": False}),
    "google/gemma-3-4b-it": ({"do_pan_and_scan": True},),
}
"""Arguments of processors (`--mm-processor-kwargs`), of which a third of the images have some."""
Image = tuple[int, int, dict[str, Any]]


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", default=VERSION, help="version of vLLM (default: %(default)s)")
    parser.add_argument("--only", default="", help="part of the names of models")
    parser.add_argument("--count", type=int, default=COUNT, help="images (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the draws")
    arguments = parser.parse_args()
    install(arguments.version)
    models = [model for model in judged_models() if arguments.only.lower() in model.key.lower()]
    drawn = draw(models, arguments.count, Random(arguments.seed))
    answers = ask(models, drawn, arguments.version)
    return compare(list(answers))


def draw(models: Sequence[JudgedModel], count: int, random: Random) -> dict[str, list[Image]]:
    """Returns images by the model that gets them."""
    drawn: dict[str, list[Image]] = defaultdict(list)
    for number in range(count):
        model = models[number % len(models)]
        width = _side(random)
        height = _side(random)
        if random.random() >= EXTREME_SHARE:
            height = max(1, min(MAX_SIDE, round(width * random.choice((0.5, 0.75, 1, 1.33, 2)))))
        if model.modality == "video":
            drawn[model.key].append(_film(random))
            continue
        if model.modality == "audio":
            drawn[model.key].append((round(MAX_SAMPLES ** random.uniform(0.55, 1)), 0, {}))
            continue
        arguments: dict[str, Any] = {}
        if model.name in ARGUMENTS and random.random() < 1 / 3:
            arguments = random.choice(ARGUMENTS[model.name])
        drawn[model.key].append((width, height, arguments))
    return drawn


def _film(random: Random) -> Image:
    """Returns a film with 4 to some hundreds of frames."""
    width = random.randint(28, MAX_FILM_SIDE)
    height = random.randint(28, MAX_FILM_SIDE)
    fps = random.choice((24.0, 25.0, 30.0, 30_000 / 1_001, 12.5, 60.0))
    frames = max(4, round(fps * random.uniform(0.3, MAX_FILM_SECONDS)))
    return width, height, {"frames": frames, "fps": fps}


def _side(random: Random) -> int:
    """Returns a side in pixels, whose logarithm is uniform."""
    side: float = MAX_SIDE ** random.uniform(0.35, 1)
    return round(side)


def ask(
    models: Sequence[JudgedModel], drawn: dict[str, list[Image]], version: str
) -> Iterator[list[Any]]:
    """Yields vLLM's answers.

    Raises:
        subprocess.CalledProcessError: vLLM failed; its output is in the folder.
    """
    questions = FOLDER / "questions.json"
    answers = FOLDER / "answers.jsonl"
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = []
    for model in models:
        folder = _folder_of(model.name)
        write_files(model, folder)
        rows.append([model.key, str(folder), model.modality, model.prompt, drawn[model.key]])
    questions.write_text(json.dumps(rows))
    with (FOLDER / "vllm.log").open("w") as log:
        subprocess.run(
            [python_of(version), HERE / "ask_vllm.py", questions, answers],
            env={**os.environ, **VLLM_VARIABLES, "PYTHONPATH": str(_packages(version))},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=True,
        )
    for line in answers.read_text().splitlines():
        yield json.loads(line)


def _folder_of(name: str) -> Path:
    """Returns the folder of the files of a model."""
    return (FOLDER / name.replace("/", "--")).resolve()


def encode(folder: Path, text: str) -> Sequence[int]:
    """Returns the tokens of a text."""
    ids: list[int] = _tokenizer(folder).encode(text, add_special_tokens=False).ids
    return ids


@cache
def _tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _packages(version: str) -> Path:
    """Returns a folder with the Python files of further packages, which are installed once."""
    folder = (FOLDER / "packages").resolve()
    if not folder.is_dir():
        command = [str(python_of(version)), "-m", "pip", "install", "--no-deps", "-q"]
        subprocess.run([*command, "--target", str(folder), *PACKAGES], check=True)
    return folder


def our_tokens(model: str, width: int, height: int, arguments: dict[str, Any]) -> list[Any]:
    """Returns Understudy's tokens of an item, and how many the encoder computes, or an error."""
    name, _, kind = model.partition(" ")
    facts = facts_of(name)
    if facts is None:
        return ["no rule"]
    try:
        if kind == "(video)" and facts.video is not None:
            film = Film(width, height, arguments["frames"], arguments["fps"])
            tokens = facts.video.tokens(film, partial(encode, _folder_of(name)))
        elif facts.image is not None and height:
            tokens = facts.image.with_arguments(arguments).tokens(width, height)
        elif facts.sound is not None and not height:
            tokens = facts.sound.tokens(width)
        else:
            return ["no rule"]
    except RuleError as error:
        return [str(error)]
    return [tokens.length, tokens.embeddings]


def compare(answers: Sequence[list[Any]]) -> int:
    """Prints the differences and the agreement by model; returns the exit status."""
    equal: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for model, width, height, arguments, *numbers in answers:
        if not width:
            print(f"{model}: vLLM does not start: {numbers}")
            total[model] += 1
            continue
        ours = our_tokens(model, width, height, arguments)
        is_equal = ours == numbers or (len(ours) == len(numbers) == 1 and ours[0] in numbers[0])
        total[model] += 1
        equal[model] += is_equal
        if not is_equal:
            print(f"{model} {width}x{height} {arguments}: vLLM {numbers}, Understudy {ours}")
    for model, count in sorted(total.items()):
        print(f"{equal[model]:4} of {count:4}  {model}")
    share: float = equal.total() / total.total()
    print(f"{equal.total()} of {total.total()} images have vLLM's tokens ({share:.1%})")
    return int(share < SHARE)


if __name__ == "__main__":
    sys.exit(main())
