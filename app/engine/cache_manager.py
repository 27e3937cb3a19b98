"""The KV cache as the simulation uses it: what a reply holds of it, and what the rest of the house learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from app.clock.pause import pause
from app.engine.request import Generation
from app.http.errors import bad_request
from app.kvcache.cache import KVCache
from app.kvcache.events import KVEvent
from app.kvcache.prompt import Adapter, Placeholder, Prompt
from app.metrics.recorder import Recorder

Publish = Callable[[Sequence[KVEvent]], None]


class Hold(Protocol):
    """What one reply has of the cache."""

    def fits(self) -> bool:
        """True when the prompt's blocks could be had now."""

    def begin(self) -> int:
        """Take the prompt's blocks; how many of its tokens were cached."""

    def took(self, ids: Sequence[int]) -> None:
        """The step that made these tokens is over."""

    def release(self) -> None:
        """Give the blocks back."""


class NoHold:
    """Of a cache that is not there: everything fits, nothing is cached."""

    def fits(self) -> bool:
        return True

    def begin(self) -> int:
        return 0

    def took(self, ids: Sequence[int]) -> None:
        """There is nothing to store."""

    def release(self) -> None:
        """There is nothing to give back."""


NO_HOLD = NoHold()


class KVCacheManager:
    """One engine's cache. `path_of` tells where an adapter came from, `publish` takes a step's events."""

    def __init__(
        self, cache: KVCache, recorder: Recorder, path_of: Callable[[str], str], publish: Publish
    ) -> None:
        self.cache = cache
        self.recorder = recorder
        self._path_of = path_of
        self._publish = publish
        self._numbers = count()

    def hold(self, generation: Generation) -> Hold:
        """What `generation` will have. Hashes its prompt, pausing for others. ApiError 400: it never fits."""
        tokens = len(generation.prompt_ids)
        if not self.cache.fits_ever(tokens):
            most = self.cache.capacity * self.cache.block_size
            raise bad_request(f"The prompt of {tokens} tokens exceeds the KV cache of {most} tokens.")
        name = generation.adapter
        adapter = None if name is None else Adapter(name, self._path_of(name))
        media = [Placeholder(*item) for item in generation.media]
        prompt = self.cache.prompt(generation.prompt_ids, adapter, generation.cache_salt, media)
        for _ in prompt.hashing():
            pause()
        return BlockHold(self, f"{generation.request_id} {next(self._numbers)}", prompt)

    def step(self) -> None:
        """Tell what has happened to the blocks."""
        self.recorder.cache_used(self.cache.usage)
        events = self.cache.take_events()
        if events:
            self._publish(events)

    def reset(self) -> bool:
        """Forget all that is cached; False, and nothing is forgotten, while requests run."""
        done = self.cache.reset()
        self.step()
        return done

    def sleep(self) -> None:
        """Forget everything and cache nothing more."""
        self.cache.discard()
        self.cache.caching = False
        self.step()

    def wake(self) -> None:
        """Cache again."""
        self.cache.caching = True


class BlockHold:
    """The blocks of one reply."""

    __slots__ = ("_key", "_owner", "_prompt")

    def __init__(self, owner: KVCacheManager, key: str, prompt: Prompt) -> None:
        self._owner = owner
        self._key = key
        self._prompt = prompt

    def fits(self) -> bool:
        return self._owner.cache.can_allocate(self._prompt)

    def begin(self) -> int:
        owner = self._owner
        found = owner.cache.begin(self._key, self._prompt) or 0
        owner.recorder.looked_up(len(self._prompt.token_ids), found)
        owner.recorder.cache_used(owner.cache.usage)
        return found

    def took(self, ids: Sequence[int]) -> None:
        # Without a free block the reply goes on all the same: nothing is preempted yet.
        if ids:
            self._owner.cache.append(self._key, ids)
        self._owner.step()

    def release(self) -> None:
        self._owner.cache.finish(self._key)
        self._owner.step()
