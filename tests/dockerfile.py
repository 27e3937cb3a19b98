"""Dockerfile and .dockerignore without a container engine: the build context, and the image in a folder.

An image is laid out as Docker would build it, step by step and stage by stage, but below a folder that stands
for its root: absolute paths of the image are moved there. Programs of the base image are this machine's,
and what `apt-get` would install is left out.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

WILDCARDS = {"**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of .dockerignore: `pattern` matches whole paths, `keeps` marks an exception (!)."""

    pattern: re.Pattern[str]
    keeps: bool

    @staticmethod
    def read(line: str) -> Rule:
        text = line.removeprefix("!").strip().strip("/").removeprefix("./")
        parts = re.split(r"(\*\*/|/\*\*$|\*\*|\*|\?|\[[^]]+\]|\\.)", text)
        return Rule(re.compile("".join(map(_as_regex, parts))), line.startswith("!"))


def _as_regex(part: str) -> str:
    if part.startswith("["):
        return part
    return WILDCARDS.get(part) or re.escape(part.removeprefix("\\"))


def rules(text: str) -> list[Rule]:
    lines = [line.strip() for line in text.splitlines()]
    return [Rule.read(line) for line in lines if line and not line.startswith("#")]


def is_sent(path: str, ignore: Sequence[Rule]) -> bool:
    """Whether Docker sends `path` to the build: the last rule decides that matches it or a folder above."""
    above = path.split("/")
    ways = ["/".join(above[: k + 1]) for k in range(len(above))]
    kept = True
    for rule in ignore:
        if any(rule.pattern.fullmatch(way) for way in ways):
            kept = rule.keeps
    return kept


def build_context(folder: Path, ignore: Sequence[Rule]) -> Iterator[str]:
    """The files of `folder` that Docker sends to the build, as paths within it."""
    reaching_in = any(rule.keeps and "/" in rule.pattern.pattern for rule in ignore)
    for parent, folders, files in os.walk(folder):
        within = Path(parent).relative_to(folder)
        if not reaching_in:  # then nothing of an ignored folder is sent, and environments are large
            folders[:] = [name for name in folders if is_sent((within / name).as_posix(), ignore)]
        yield from (path for name in files if is_sent(path := (within / name).as_posix(), ignore))


def copied_context(folder: Path, ignore: Sequence[Rule], target: Path) -> Path:
    """`target`, into which the build context was laid out as Docker does."""
    for path in build_context(folder, ignore):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / path, target / path)
    return target


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a Dockerfile, with its flags (--from=...) apart."""

    name: str
    flags: tuple[str, ...]
    words: tuple[str, ...]
    text: str
    """All behind the name, as it is written."""


def steps(dockerfile: str) -> list[Step]:
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", dockerfile))
    read = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        text = line.partition(" ")[2].strip()
        name, *words = shlex.split(line)
        flags = tuple(word for word in words if word.startswith("--")) if name == "COPY" else ()
        read.append(Step(name.upper(), flags, tuple(word for word in words if word not in flags), text))
    return read


OUR_PLACES = re.compile(r"(?<![\w./])/(?=(?:venv|srv|build|usr/local/bin)\b)")
"""Where absolute paths of the image begin that a step may write below."""


@dataclass(slots=True)
class Stage:
    """One stage of the build, below `root`."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    folder: Path = Path("/")
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def moved(self, text: str) -> str:
        """`text` with the image's absolute paths below `root`."""
        return OUR_PLACES.sub(f"{self.root}/", text)

    def within(self, path: str) -> Path:
        """Where a path of the image is here."""
        return self.root / str(self.folder / path).lstrip("/")

    def environment(self) -> dict[str, str]:
        """What its programs find: nothing of our own environment but where programs are."""
        python = Path(sys.executable).parent
        return {"PATH": f"{python}:{os.environ['PATH']}"} | self.env

    def run(self, command: str) -> None:
        """A RUN step. CalledProcessError when it fails."""
        if "apt-get" in command:
            return
        subprocess.run(
            ["/bin/sh", "-ec", self.moved(command)],
            cwd=self.within("."),
            env=self.environment(),
            check=True,
            capture_output=True,
        )


def lay_out(folder: Path, context: Path, dockerfile: str) -> Stage:
    """The last stage of the image that `dockerfile` builds from `context`, below `folder`."""
    stages: dict[str, Stage] = {}
    for step in steps(dockerfile):
        if step.name == "FROM":
            name = step.words[-1] if "AS" in step.words else str(len(stages))
            stage = stages[name] = Stage(folder / name)
            stage.root.mkdir(parents=True)
            (stage.root / "usr" / "local" / "bin").mkdir(parents=True)
        elif step.name == "ENV":
            for word in step.words:
                variable, _, text = word.partition("=")
                stage.env[variable] = stage.moved(text.replace("$PATH", stage.environment()["PATH"]))
        elif step.name == "WORKDIR":
            stage.folder = Path(step.words[0])
            stage.within(".").mkdir(parents=True, exist_ok=True)
        elif step.name == "COPY":
            _copy(step, stage, stages, context)
        elif step.name == "RUN":
            stage.run(step.text)
        elif step.name == "HEALTHCHECK":
            stage.health = json.loads(step.text.partition("CMD")[2])
        elif step.name in ("ENTRYPOINT", "CMD"):
            setattr(stage, step.name.lower().replace("cmd", "command"), json.loads(step.text))
    return stage


def _copy(step: Step, stage: Stage, stages: dict[str, Stage], context: Path) -> None:
    other = next((flag.removeprefix("--from=") for flag in step.flags if flag.startswith("--from=")), None)
    *sources, target = step.words
    for source in sources:
        found = context / source if other is None else stages[other].within(source)
        place = stage.within(target)
        if found.is_dir():
            shutil.copytree(found, place, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy(found, place / found.name if place.is_dir() else place)
