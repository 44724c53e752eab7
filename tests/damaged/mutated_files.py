"""Files changed at random, read with little memory; ``python -m tests.damaged.mutated_files``.

The command reads a file of weights, or an ONNX file, again and again with changes, and prints how
many were refused. It ends with a traceback, and leaves the changed file in place, if anything else
than a sentence comes of one, or reading it takes long or much memory.
"""

from __future__ import annotations

import io
import random
import resource
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hookscope.errors import HookscopeError
from tests.damage import damaged, endure

_MEMORY = 1 << 30  # bytes of addresses beyond those that the imported packages take
_LARGE = 1 << 26  # bytes of values: a file of a few kilobytes may have a gigabyte of views
_SIZES = {1: "B", 2: "H", 4: "I", 8: "Q"}


def recounted(data: bytes, rounds: int, seed: int) -> Iterator[bytes]:
    """The file with numbers of one to eight bytes changed to extreme ones, and with parts of it
    repeated, exchanged or many times in a row.
    """
    source = random.Random(seed)
    for _ in range(rounds):
        made = bytearray(data)
        for _ in range(source.choice((1, 1, 2, 4))):
            at, other = (source.randrange(max(1, len(made))) for _ in range(2))
            length = source.choice((2, 8, 32, 128))
            how = source.randrange(4)
            if how < 2:
                size = source.choice(tuple(_SIZES))
                bits = 8 * size
                largest = (1 << bits) - 1
                value = source.choice((0, 1, largest, largest >> 1, 1 << bits - 1, largest - 7))
                made[at : at + size] = struct.pack(f"<{_SIZES[size]}", value)
            elif how == 2:
                made[at:at] = made[other : other + length] * source.choice((1, 2, 100))
            else:
                made[at : at + length] = made[other : other + length]
        yield bytes(made)


def repacked(data: bytes, rounds: int, seed: int) -> Iterator[bytes]:
    """A zip archive with right checksums, in which one record is changed."""
    source = random.Random(seed)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    for n in range(rounds):
        name = source.choice([name for name, record in records.items() if record])
        change = source.choice((damaged, recounted))
        other = list(change(records[name], 1, n))[-1]
        packing = source.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", packing) as made:
            for each, record in records.items():
                made.writestr(each, other if each == name else record)
        yield buffer.getvalue()


def changed(data: bytes, rounds: int, seed: int) -> Iterator[bytes]:
    yield from damaged(data, rounds, seed)
    yield from recounted(data, rounds, seed)
    if zipfile.is_zipfile(io.BytesIO(data)):
        yield from repacked(data, rounds, seed)


def read_weights(path: Path) -> None:
    """Read what ``hookscope tree --hash`` and ``hookscope report`` read of a file."""
    from hookscope.file_analysis.weight_findings import check_weights
    from hookscope.specs.command_options import WeightCheckOptions
    from hookscope.stores.weights.open_weights import is_weights, open_weights
    from hookscope.stores.weights.weight_tree import WeightTree, hash_weights

    is_weights(str(path))
    weights = open_weights(path)
    WeightTree.of(weights)
    if weights.nbytes < _LARGE:
        hash_weights(weights)
        check_weights(weights, WeightCheckOptions())


def read_onnx(path: Path) -> None:
    """Open a file of a graph and list its modules."""
    import hookscope

    hookscope.tree(path)


def limit_memory() -> None:
    status = Path("/proc/self/status").read_text().splitlines()
    taken = next(int(line.split()[1]) for line in status if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (1024 * taken + _MEMORY,) * 2)


def main(path: Path, rounds: int, seed: int) -> None:
    read: Callable[[Path], None] = read_onnx if path.suffix == ".onnx" else read_weights
    read(path)  # imports what it needs
    limit_memory()
    data = path.read_bytes()
    refused = endure(path, changed(data, rounds, seed), lambda: read(path), HookscopeError)
    print(f"{path.name}: {refused} refused")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
