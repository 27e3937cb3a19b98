"""Messages that go wrong on purpose: what `app.faults.damage` does to events, done to those of a call."""

from __future__ import annotations

from collections.abc import Iterator

from app.api.grpc.writer import GenerateWriter
from app.api.stream import EventStream
from app.engine.client import TakeToken
from app.engine.outputs import EngineOutput
from app.faults.damage import ends_after
from app.faults.fault import Damage
from app.http.rpc import PREFIX_BYTES, framed
from config.fault_rules import (
    DisconnectRule,
    MalformedChunkRule,
    MissingDoneRule,
    TruncatedJsonRule,
)

NO_MESSAGE = b"\xff\xff\xff"
"""No field begins so."""
COMPLETE = b"\x12"
"""How a message begins that tells the end of a choice."""


class MessageDamage:
    """Alters the messages of one call, counted from 1. `is_over` says that no more may come."""

    def __init__(self, damage: Damage) -> None:
        self._damage = damage
        self._number = 0
        self.was_damaged = self.is_over = ends_after(damage, 0)

    def applied(self, data: bytes) -> bytes:
        """What leaves instead of these messages."""
        kept = []
        for message in _messages(data):
            if self.is_over:
                break
            self._number += 1
            kept.append(self._altered(message))
            if ends_after(self._damage, self._number):
                self.was_damaged = self.is_over = True
        return b"".join(kept)

    def _altered(self, message: bytes) -> bytes:
        damage = self._damage
        if isinstance(damage, MalformedChunkRule) and self._number == damage.chunk:
            changed = framed(NO_MESSAGE + message)
        elif isinstance(damage, TruncatedJsonRule) and self._number == damage.chunk:
            changed = framed(message[: len(message) // 2])
        elif isinstance(damage, MissingDoneRule) and message.startswith(COMPLETE):
            changed = b""
        else:
            return framed(message)
        self.was_damaged = True
        return changed


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        begin = at + PREFIX_BYTES
        at = begin + int.from_bytes(data[at + 1 : begin], "big")
        yield data[begin:at]


class DamagedMessages(EventStream):
    """A stream of messages with `damage`: `writer` is told of it, and the call ends, or breaks, early."""

    __slots__ = ("_damage", "_rule")

    def __init__(self, writer: GenerateWriter, choices: int, damage: Damage) -> None:
        super().__init__(writer, choices)
        self._rule, self._damage = damage, MessageDamage(damage)
        writer.damage = self._damage

    @property
    def was_damaged(self) -> bool:  # type: ignore[override]
        """It has come to that."""
        return self._damage.was_damaged

    @property
    def is_cut_off(self) -> bool:
        """The end is missing."""
        return self.was_damaged and not isinstance(self._rule, MalformedChunkRule)

    def emit(self, output: EngineOutput) -> TakeToken | None:
        """Take an output; none by itself."""
        super().emit(output)
        transport = self.transport
        if self._damage.is_over and self.unfinished and transport is not None and not transport.lags:
            self.unfinished = 0
            if self.handle is not None:
                self.handle.abort()
            self._end()
        return None

    def next_slice(self) -> tuple[bytes, bool, bool]:
        """See `EventStream`."""
        data, more, last = super().next_slice()
        if not self._damage.is_over:
            return data, more, last
        self.unfinished = 0
        if isinstance(self._rule, DisconnectRule) and self.transport is not None:
            self.transport.write(data)
            self.transport.break_off()
            return b"", False, False
        return data, False, True

    def _end(self) -> None:
        if self.transport is None:
            return
        if isinstance(self._rule, DisconnectRule):
            self.transport.break_off()
        else:
            self.transport.write(b"", True)

    def close(self) -> None:
        """Whoever is cut off has not left."""
        super().close()
        self.gone = self.gone and not self.is_cut_off
