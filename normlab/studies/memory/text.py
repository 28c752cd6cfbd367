"""Read the text that the models learn, as bytes: a file, or the source of normlab's own kernels."""

import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

OWN_ROOMS = ("stages", "kernels/forward", "kernels/backward")


class Text(NamedTuple):
    """A text and what it is called."""

    name: str
    content: bytes

    def described(self) -> dict[str, Any]:
        """Return name, length and digest, for a record."""
        digest = hashlib.sha256(self.content).hexdigest()
        return {"name": self.name, "bytes": len(self.content), "sha256": digest}

    def batch(self, batch: int, sequence: int, device: str, random: torch.Generator | None = None) -> list[Tensor]:
        """Return [inputs, targets], each (batch, sequence) int64: passages of the text, and the same one byte further.

        Without `random` one after the other from the beginning, around the end where the text is too short; with it
        from anywhere.
        """
        content = torch.frombuffer(bytearray(self.content), dtype=torch.uint8).long()
        if random is None:
            first = torch.arange(batch) * (sequence + 1)
        else:
            first = torch.randint(len(content) - sequence, (batch,), generator=random)
        offsets = first[:, None] + torch.arange(sequence + 1)
        passages = content[offsets % len(content)].to(device)
        return [passages[:, :-1].contiguous(), passages[:, 1:].contiguous()]


def read(path: Path | None, sequence: int = 1) -> Text:
    """Return a file's text, or normlab's own: the source of its stages and of its two ladders of norms.

    Raises:
        OSError: no such file. ValueError: fewer bytes than a passage of `sequence` needs.
    """
    if path is None:
        return Text("normlab's stages and ladders", b"\n".join(_own()))
    content = path.read_bytes()
    if len(content) <= sequence:
        raise ValueError(f"{path}: has {len(content)} bytes; --sequence {sequence} needs {sequence + 1}")
    return Text(path.name, content)


def _own() -> list[bytes]:
    package = files("normlab")
    found = [file for room in OWN_ROOMS for file in (package / room).iterdir() if file.name.endswith(".py")]
    return [file.read_bytes() for file in sorted(found, key=lambda file: file.name)]
