"""Event to canonical JSON and back, and the hash that chains each event to the one before.

It must not know where the bytes are kept.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Raw

from counterfoil.core.events import Event

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_encoder = msgspec.json.Encoder(order="deterministic")
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """Return the event as canonical JSON: fields in their declared order, mappings sorted, defaults left out.

    Raises what `decode` raises, for an event that could not be read back: a journal is not poisoned, it is not written.
    """
    body = _encoder.encode(event)
    decode(body)
    return body


def decode(body: bytes) -> Event:
    """Return the event; raises `msgspec.DecodeError` for anything else, `RecursionError` where it nests too deep."""
    return _decoder.decode(body)


def to_micros(moment: datetime) -> int:
    """Return microseconds since 1970 UTC."""
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the moment, in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def first_link(run_id: str) -> bytes:
    """Return what the first event of a run is chained to."""
    return hashlib.sha256(b"counterfoil/1\x00" + run_id.encode()).digest()


def link(previous: bytes, position: int, at_us: int, fence: int, body: bytes) -> bytes:
    """Return the hash of an event in its place, chained to the one before."""
    head = b"%d/%d/%d/%d/" % (position, at_us, fence, len(body))
    return hashlib.sha256(previous + head + body).digest()


def canonical(value: object) -> bytes:
    """Return a JSON value with sorted keys: what digests of inputs are made of."""
    return msgspec.json.encode(value, order="sorted")


def digest(raw: bytes | Raw) -> str:
    """Return the SHA-256 of some JSON, independent of key order and white space."""
    return hashlib.sha256(canonical(msgspec.json.decode(raw))).hexdigest()
