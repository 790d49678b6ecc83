"""The write-ahead log as bytes: SQLite drops all that stands behind a damaged place in it, and says nothing.

A torn end is no damage: nobody was told that it was durable. What must be noticed is a damaged place *before* a write
that was acknowledged. It must not change the log, and it takes no lock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from counterfoil.errors import JournalDamaged

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682  # The last bit names the byte order that checksums are made in.
_WORD = 0xFFFFFFFF

Sum = tuple[int, int]


class _Log(Struct, frozen=True, kw_only=True):
    content: bytes
    page_bytes: int
    order: str
    salts: tuple[int, int]
    seed: Sum

    @property
    def frames(self) -> int:
        return (len(self.content) - _HEADER.size) // (_FRAME.size + self.page_bytes)

    def ours(self, number: int) -> bool:
        """Whether a frame belongs to this round of the log, not to an earlier one."""
        return self._fields(number)[2:4] == self.salts

    def ends_commit(self, number: int) -> bool:
        return self._fields(number)[1] != 0

    def stored(self, number: int) -> Sum:
        return self._fields(number)[4:6]

    def sum_of(self, number: int, seed: Sum) -> Sum:
        start = self._start(number)
        body = start + _FRAME.size
        seed = _checksum(self.order, self.content[start : start + 8], seed)
        return _checksum(self.order, self.content[body : body + self.page_bytes], seed)

    def _start(self, number: int) -> int:
        return _HEADER.size + number * (_FRAME.size + self.page_bytes)

    def _fields(self, number: int) -> tuple[int, int, int, int, int, int]:
        fields: tuple[int, int, int, int, int, int] = _FRAME.unpack_from(self.content, self._start(number))
        return fields


def refuse_damage(database: Path) -> None:
    """Raise if an acknowledged write stands behind a damaged place in the log.

    Raises:
        JournalDamaged: it does, and opening the database would lose it without a word.
    """
    log = Path(f"{database}-wal")
    before: bytes | None = None
    for _ in range(5):  # Another process may be beginning the log anew while we read: then look again.
        try:
            content = log.read_bytes()
        except FileNotFoundError:  # The last one who had the store open took it away.
            content = b""
        where = _damaged(content)
        if where is None:
            return
        if content == before:
            break
        before = content
    else:
        return
    raise JournalDamaged(f"{log}: {where}, before writes that were acknowledged; the file was not touched")


def _damaged(content: bytes) -> str | None:
    if len(content) <= _HEADER.size:
        return None
    log = _open(content)
    if log is None:
        return "its first 32 bytes are damaged"
    number, seed = 0, log.seed
    while number < log.frames and log.ours(number) and (seed := log.sum_of(number, seed)) == log.stored(number):
        number += 1
    if any(_goes_on(log, later) for later in range(number + 1, log.frames)):
        return f"frame {number + 1} is damaged"
    return None


def _goes_on(log: _Log, number: int) -> bool:
    """Whether a frame was written after a commit: a next write begins only when the one before is durable."""
    before = number - 1
    if not (log.ours(before) and log.ends_commit(before) and log.ours(number)):
        return False
    return log.sum_of(number, log.stored(before)) == log.stored(number)


def _open(content: bytes) -> _Log | None:
    magic, _, page_bytes, _, *rest = _HEADER.unpack_from(content)
    if magic | 1 != _MAGIC | 1 or page_bytes == 0:
        return None
    order = ">" if magic & 1 else "<"
    salts, stored = (rest[0], rest[1]), (rest[2], rest[3])
    if _checksum(order, content[: _HEADER.size - 8], (0, 0)) != stored:
        return None
    return _Log(content=content, page_bytes=page_bytes, order=order, salts=salts, seed=stored)


def _checksum(order: str, data: bytes, seed: Sum) -> Sum:
    """SQLite's own: Fibonacci-weighted sums of pairs of words."""
    one, two = seed
    for first, second in _pairs(order, data):
        one = (one + first + two) & _WORD
        two = (two + second + one) & _WORD
    return one, two


def _pairs(order: str, data: bytes) -> Iterator[tuple[int, int]]:
    pairs: Iterator[tuple[int, int]] = struct.iter_unpack(f"{order}2I", data)
    return pairs
