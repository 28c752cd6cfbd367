"""Pack the messages between grader and solution: a JSON header, then the plain bytes of arrays, without pickle."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

LENGTH = 8  # bytes of the number that gives the header's length


def pack(header: dict[str, Any], blobs: list[bytes]) -> bytes:
    """Return one message, as bytes."""
    head = json.dumps(header | {"blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join([len(head).to_bytes(LENGTH, "little"), head, *blobs])


def unpack(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return a message's header and blobs. Raise ValueError for a malformed message."""
    start = LENGTH + int.from_bytes(message[:LENGTH], "little")
    header = json.loads(_whole_characters(message[LENGTH:start]))
    if not isinstance(header, dict) or not isinstance(header.get("blobs"), list):
        raise ValueError("no header")
    blobs = []
    for length in header["blobs"]:
        blobs.append(message[start : start + length])
        start += length
    return header, blobs


def _whole_characters(head: bytes) -> bytes:
    """Return a header in which half a surrogate pair, which no file and no terminal takes, is a question mark.

    Python's strings may hold one, and a student's print or assert sends it.
    """
    if b"\\ud" not in head.lower():
        return head
    return json.dumps(json.loads(head), ensure_ascii=False).encode("utf-8", "replace")


def described(arrays: dict[str, np.ndarray]) -> list[list[Any]]:
    """Return the names, dtypes and shapes of arrays, in a form that JSON can hold."""
    return [[name, str(array.dtype), list(array.shape)] for name, array in arrays.items()]


def rebuilt(description: Sequence[Sequence[Any]], blobs: list[bytes]) -> dict[str, np.ndarray]:
    """Return writable arrays from their descriptions and bytes. Raise ValueError if the bytes do not fit."""
    return {
        name: np.frombuffer(blob, dtype).reshape(shape).copy()
        for (name, dtype, shape), blob in zip(description, blobs, strict=True)
    }
