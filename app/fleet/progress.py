"""Tells people what is going on: a bar on a terminal, a line for each phase elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm


class Progress:
    """Writes to `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @contextmanager
    def phase(self, name: str, steps: int) -> Iterator[Callable[[], None]]:
        """A phase of so many steps; what is given is to be called after each of them."""
        is_terminal = self._stream.isatty()
        if not is_terminal:
            self.note(f"{name} ...")
        form = "{desc} {bar:30} {n_fmt}/{total_fmt} {elapsed}"
        with tqdm(
            total=steps,
            desc=name,
            file=self._stream,
            bar_format=form,
            leave=False,
            disable=not is_terminal,
        ) as bar:

            def step() -> None:
                bar.update()

            yield step

    def note(self, text: str) -> None:
        """A line that stays."""
        print(text, file=self._stream, flush=True)
