"""What a kernel's machine code does, as the cubin says it from whose log its resources are read.

PTX says the same, but takes a second run of the compiler and of the linker.
"""

import re
from typing import Any

import numpy as np

from normlab.engine import Resources
from normlab.engine.compile.offline import compile_cubin
from normlab.engine.compile.resources import resources_of
from normlab.engine.compile.signatures import kinds_of_types

# The lowest nine bits of an instruction of 16 bytes, on an A100 and an H100, as nvdisasm names them.
FLOAT64 = {
    0x28: "DMUL",
    0x29: "DADD",
    0x2A: "DSETP",
    0x2B: "DFMA",
    0x3F: "DMMA",
    0x110: "F2F, between float64 and another type",
}


def resources_in_float32(kernel: Any, types: tuple, cc: tuple[int, int] = (9, 0)) -> Resources:
    """Return a kernel's resources; fail if it computes in float64, or calls a function that was not inlined."""
    cubin, name = compile_cubin(kernel, kinds_of_types(types), cc), kernel.py_func.__name__
    codes = np.frombuffer(entry_code(cubin.image, cubin.entry), np.uint64)[::2] & np.uint64(0x1FF)
    assert codes.size, "no machine code is found"
    assert not FLOAT64.keys() & set(codes.tolist()), f"{name} computes in the wrong precision"
    # The assembler tells the properties of each function that it makes. Slow paths of divisions are not among them.
    made = re.findall("Function properties for (.+)", cubin.log)
    assert made == [cubin.entry], f"{name} calls a function that was not inlined"
    return resources_of(cubin)


def entry_code(image: bytes, entry: str) -> bytes:
    """The machine code of a cubin's kernel: the section `.text.entry` of an ELF file of 64 bits."""
    headers = int.from_bytes(image[40:48], "little")
    size, count, names_in = np.frombuffer(image, "<u2", 3, 58)
    fields = {"name": ("<u4", 0), "offset": ("<u8", 24), "size": ("<u8", 32)}
    formats, offsets = zip(*fields.values(), strict=True)
    section = np.dtype({"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": size})
    table = np.frombuffer(image, section, count, headers)
    names = image[table[names_in]["offset"] :]
    wanted = f".text.{entry}\0".encode()
    (found,) = (one for one in table if names.startswith(wanted, one["name"]))
    return image[found["offset"] : found["offset"] + found["size"]]
