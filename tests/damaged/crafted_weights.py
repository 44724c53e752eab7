"""Files of weights that somebody made to do harm."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from typing import Any

Member = dict[str, bytes]


def safetensors_file(table: Any, data: bytes = b"", length: int | None = None) -> bytes:
    header = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def tensor(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def zipped(members: Member, compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


class Call:
    """Pickled as a call of any function with any arguments."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> Any:
        return self.made


class Named:
    """Pickled as a global of that name, which need not exist here."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Pickler(pickle._Pickler):  # type: ignore[name-defined, misc]
    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Named):
            module, _, name = obj.name.rpartition(".")
            self.write(f"c{module}\n{name}\n".encode())
        else:
            super().save(obj, save_persistent_id)

    def save_reduce(self, func: Any, args: Any, *rest: Any, **named: Any) -> None:
        self.save(func)
        self.save(args)
        self.write(pickle.REDUCE)

    def persistent_id(self, obj: Any) -> Any:
        return obj.pid if isinstance(obj, Storage) else None


class Storage:
    """A storage of torch by its key."""

    def __init__(self, key: str, numel: Any, kind: str = "torch.FloatStorage") -> None:
        self.pid = ("storage", Named(kind), key, "cpu", numel)


def pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, 2).dump(value)
    return buffer.getvalue()


def rebuilt(storage: Any, offset: Any, shape: Any, strides: Any) -> Call:
    function = Named("torch._utils._rebuild_tensor_v2")
    return Call(function, storage, offset, shape, strides, False, {})


def torch_file(content: bytes, records: Member | None = None, byteorder: str = "little") -> bytes:
    members = {"a/data.pkl": content, "a/byteorder": byteorder.encode()}
    members |= {f"a/data/{key}": data for key, data in (records or {}).items()}
    return zipped(members)


def one_tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> bytes:
    return torch_file(pickled({"w": rebuilt(storage, offset, shape, strides)}), {"0": bytes(16)})


def claims(name: str, size: int) -> bytes:
    """An archive whose directory says that a record unpacks to ``size`` bytes."""
    data = bytearray(zipped({name: bytes(1000)}, zipfile.ZIP_DEFLATED))
    directory = data.rfind(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = struct.pack("<I", size)
    return bytes(data)


def npy_file(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def gguf_file(
    tensors: int = 0, values: int = 0, body: bytes = b"", version: int = 3, pad: int = 200
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values) + body + bytes(pad)


def gguf_text(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


def gguf_tensor(name: bytes, shape: list[int], kind: int, offset: int) -> bytes:
    lengths = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return gguf_text(name) + lengths + struct.pack("<IQ", kind, offset)


def _own_items() -> dict[str, Any]:
    own: dict[str, Any] = {}
    own["again"] = own
    return own


def _many_paths() -> Any:
    level: Any = [rebuilt(Storage("0", 4), 0, (1,), (1,))]
    for _ in range(60):
        level = [level, level]
    return level


def _doubled(levels: int, inner: bytes, memo: int = 0) -> bytes:
    """Instructions for a tuple that has the one below twice; the text of it doubles each time."""
    return inner + b"".join(
        b"q" + bytes([memo + n]) + b"h" + bytes([memo + n]) + b"\x86" for n in range(levels)
    )


def _called(function: bytes, arguments: bytes) -> bytes:
    return b"c" + function + b"\n" + arguments + b"R"


def _repeated(before: bytes, again: bytes, times: int) -> bytes:
    """A pickle of a list with the same instructions again and again, after some others."""
    return b"\x80\x02" + before + b"0](" + again * times + b"e."


def _memo_text(length: int, index: int) -> bytes:
    return b"X" + struct.pack("<I", length) + b"a" * length + b"q" + bytes([index])


def _around(value: Any, *keys: str) -> Any:
    for key in keys:
        value = {key: value}
    return value


def _model_in_itself() -> dict[str, Any]:
    """A part that is named as that of the weights, with itself in it."""
    own: dict[str, Any] = {"optimizer": {"w": rebuilt(Storage("0", 4), 0, (1,), (1,))}}
    own["model"] = own
    return own


def _many_views(count: int) -> list[Any]:
    storage = Storage("0", 4)
    return [rebuilt(storage, 0, (1 << 27 - n, 1 << n), (0, 0)) for n in range(count)]


HARM = "hookscope_was_harmed"  # the file that code in these files would create
TOUCH = Call(open, HARM, "w")
CRAFTED: dict[str, Callable[[], bytes]] = {
    # safetensors
    "negative.safetensors": lambda: safetensors_file({"w": tensor([1], -4, 0)}, bytes(4)),
    "backwards.safetensors": lambda: safetensors_file({"w": tensor([1], 4, 0)}, bytes(4)),
    "overlap.safetensors": lambda: safetensors_file(
        {"a": tensor([2], 0, 8), "b": tensor([2], 4, 12)}, bytes(12)
    ),
    "gap.safetensors": lambda: safetensors_file(
        {"a": tensor([1], 0, 4), "b": tensor([1], 8, 12)}, bytes(12)
    ),
    "beyond.safetensors": lambda: safetensors_file({"w": tensor([1 << 40], 0, 1 << 42)}, b"1234"),
    "overflow.safetensors": lambda: safetensors_file({"w": tensor([1 << 40] * 40, 0, 0)}),
    "misfit.safetensors": lambda: safetensors_file({"w": tensor([3], 0, 4)}, bytes(4)),
    "long_header.safetensors": lambda: safetensors_file(b'{"a', length=(1 << 32) - 1),
    "deep.safetensors": lambda: safetensors_file(b'{"a":' * 100_000),
    "twice.safetensors": lambda: safetensors_file(
        b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        bytes(4),
    ),
    "fractions.safetensors": lambda: safetensors_file({"w": tensor([1.5], 0, 4)}, bytes(4)),
    "dtype.safetensors": lambda: safetensors_file({"w": tensor([1], 0, 4, "F9000")}, bytes(4)),
    "dtype_list.safetensors": lambda: safetensors_file({"w": tensor([1], 0, 4, [])}, bytes(4)),
    "metadata.safetensors": lambda: safetensors_file({"__metadata__": {"a": [1]}}),
    "crowded.safetensors": lambda: safetensors_file(b'{"a":[' + b"[]," * 9_000_000 + b"[]]}"),
    "no_lengths.safetensors": lambda: safetensors_file({"w": tensor([0, 1 << 61, 1 << 61], 0, 0)}),
    "trailing.safetensors": lambda: safetensors_file({"w": tensor([1], 0, 4)}, bytes(5)),
    "name.safetensors": lambda: safetensors_file({"." * 1_000_000: tensor([1], 0, 4)}, bytes(4)),
    # pickles of torch.save
    "system.pth": lambda: torch_file(pickled({"w": TOUCH})),
    "system.pkl": lambda: pickle.dumps(TOUCH),
    "item.pth": lambda: torch_file(pickled({"w": [TOUCH, {"b": TOUCH}]})),
    "memo.pth": lambda: torch_file(b"\x80\x02Nr\xff\xff\xff\xff."),
    "long_bytes.pth": lambda: torch_file(b"\x80\x04\x8e" + b"\xff" * 7 + b"\x00abc."),
    "deep.pth": lambda: torch_file(b"\x80\x02" + b"(" * 50_000 + b"t" * 50_000 + b"."),
    "deep_lists.pth": lambda: torch_file(b"\x80\x02" + b"](" * 50_000 + b"e" * 50_000 + b"."),
    "deep_keys.pth": lambda: torch_file(b"\x80\x02}" + b")" + b"\x85" * 50_000 + b"Ns."),
    "value.pkl": lambda: b"\x80\x04\x8e" + b"\xff" * 7 + b"\x00abc.",
    "text.pth": lambda: b"some words that are no weights",
    "number.pth": lambda: torch_file(b"L" + b"9" * 100_000 + b"L\n."),
    "itself.pth": lambda: torch_file(pickled(_own_items())),
    "paths.pth": lambda: torch_file(pickled(_many_paths()), {"0": bytes(16)}),
    "negative.pth": lambda: one_tensor(Storage("0", 4), 0, (-4,), (1,)),
    "backwards.pth": lambda: one_tensor(Storage("0", 4), 3, (4,), (-1,)),
    "offset.pth": lambda: one_tensor(Storage("0", 4), 1 << 61, (1,), (1,)),
    "beyond.pth": lambda: one_tensor(Storage("0", 1 << 50), 0, (1 << 50,), (1,)),
    "strides.pth": lambda: one_tensor(Storage("0", 4), 0, (2, 2), (1 << 60, 1 << 60)),
    "expanded.pth": lambda: one_tensor(Storage("0", 4), 0, (1 << 20, 1 << 20), (0, 0)),
    "overflow.pth": lambda: one_tensor(Storage("0", 4), 0, (1 << 40,) * 40, (0,) * 40),
    "texts.pth": lambda: one_tensor(Storage("0", 4), "0", ("4",), ("1",)),
    "no_storage.pth": lambda: one_tensor(5, 0, (4,), (1,)),
    "no_record.pth": lambda: one_tensor(Storage("../../../../etc/passwd", 4), 0, (4,), (1,)),
    "kind.pth": lambda: one_tensor(Storage("0", 4, "os.system"), 0, (4,), (1,)),
    "big_endian.pth": lambda: torch_file(pickled({}), byteorder="big"),
    "bomb.pth": lambda: claims("a/data.pkl", 0xFFFFFFFE),
    "short_old.pth": lambda: pickle.dumps(0x1950A86A20F9469CFC6C, 2),
    "device.pth": lambda: torch_file(
        b"\x80\x02" + _called(b"torch\ndevice", _doubled(40, b"K\x01") + b"\x85") + b"."
    ),
    "dtype_order.pth": lambda: torch_file(
        b"\x80\x02cnumpy\nndarray\nq\xf0K\x00\x85q\xf10"
        + _called(b"numpy._core.multiarray\n_reconstruct", b"h\xf0h\xf1\x86")
        + b"(K\x01)"
        + _called(b"numpy\ndtype", b"X\x02\x00\x00\x00f4\x85")
        + b"(K\x03"
        + _doubled(40, b"K\x01")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89C\x00tb."
    ),
    "globals.pth": lambda: torch_file(_repeated(_memo_text(4_000_000, 0), b"h\x00h\x00\x93", 200)),
    "copies.pth": lambda: torch_file(
        b"\x80\x02cbuiltins\nlist\nq\x01]("
        + b"N" * 1_000_000
        + b"e\x85q\x000]("
        + b"h\x01h\x00R" * 200
        + b"e."
    ),
    "dict_copies.pth": lambda: torch_file(
        b"\x80\x02cbuiltins\ndict\nq\x01]("
        + b"N" * 1_000_000
        + b"e\x85q\x000]("
        + b"h\x01h\x00R" * 20_000
        + b"e."
    ),
    "arguments.pth": lambda: torch_file(
        b"\x80\x02ctorch._utils\n_rebuild_parameter\nq\x01("
        + b"N" * 1_000_000
        + b"tq\x000]("
        + b"h\x01h\x00R" * 20_000
        + b"e."
    ),
    "reconstructed.pth": lambda: torch_file(
        b"\x80\x02ccopyreg\n_reconstructor\nq\x01("
        + b"h\x01"
        + b"N" * 1_000_000
        + b"tq\x000]("
        + b"h\x01h\x00R" * 200
        + b"e."
    ),
    "long_keys.pth": lambda: torch_file(
        b"\x80\x02\x8b"
        + struct.pack("<I", 1700)
        + b"\x7f" * 1700
        + b"q\x000}("
        + b"h\x00N" * 300_000
        + b"u."
    ),
    "large_lengths.pth": lambda: one_tensor(Storage("0", 4), 0, (1 << 4_000_000,) * 60, (1,) * 60),
    "no_lengths.pth": lambda: one_tensor(Storage("0", 4), 0, (0, 1 << 61, 1 << 61), (1, 1, 1)),
    "long_parts.pth": lambda: torch_file(
        pickled(_around(rebuilt(Storage("0", 4), 0, (4,), (1,)), *("ab" * 2_000_000,) * 50)),
        {"0": bytes(16)},
    ),
    "model_in_itself.pth": lambda: torch_file(pickled(_model_in_itself()), {"0": bytes(16)}),
    "many_views.pth": lambda: torch_file(pickled(_many_views(20)), {"0": bytes(16)}),
    "shared_lists.pth": lambda: torch_file(
        b"\x80\x02](" + b"N" * 1_000_000 + b"eq\x000](" + b"h\x00" * 100_000 + b"e."
    ),
    # arrays of numpy
    "objects.npz": lambda: zipped(
        {"o.npy": npy_file("{'descr': '|O', 'fortran_order': False, 'shape': ()}", pickled(TOUCH))}
    ),
    "objects.npy": lambda: npy_file(
        "{'descr': '|O', 'fortran_order': False, 'shape': ()}", pickled(TOUCH)
    ),
    "code.npy": lambda: npy_file(f"open({HARM!r}, 'w')"),
    "shape.npy": lambda: npy_file(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 << 60,)}", b"1234"
    ),
    "beyond.npy": lambda: npy_file(
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({1 << 40},)}}", b"1234"
    ),
    "negative.npy": lambda: npy_file(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", b"1234"
    ),
    "deep.npy": lambda: npy_file("(" * 9_000),
    "bomb.npz": lambda: claims("a.npy", 0xFFFFFFFE),
    "no_arrays.npz": lambda: zipped({"a.npy": b"not an array"}),
    # GGUF
    "tensors.gguf": lambda: gguf_file(tensors=1 << 60),
    "values.gguf": lambda: gguf_file(values=1 << 60),
    "long_list_text.gguf": lambda: gguf_file(
        values=1,
        body=gguf_text(b"a")
        + struct.pack("<IIQ", 9, 8, 6)
        + gguf_text(b"x") * 4
        + gguf_text(bytes(20_000_000))
        + gguf_text(b"x"),
    ),
    "text.gguf": lambda: gguf_file(values=1, body=gguf_text(b"a", 1 << 63)),
    "list.gguf": lambda: gguf_file(
        values=1, body=gguf_text(b"a") + struct.pack("<IIQ", 9, 8, 1 << 62)
    ),
    "numbers.gguf": lambda: gguf_file(
        values=1, body=gguf_text(b"a") + struct.pack("<IIQ", 9, 0, 1 << 62)
    ),
    "lists.gguf": lambda: gguf_file(
        values=1, body=gguf_text(b"a") + struct.pack("<IIQ", 9, 9, 1 << 62)
    ),
    "kind.gguf": lambda: gguf_file(values=1, body=gguf_text(b"a") + struct.pack("<I", 99)),
    "alignment.gguf": lambda: gguf_file(
        values=1, body=gguf_text(b"general.alignment") + struct.pack("<II", 4, 0)
    ),
    "dimensions.gguf": lambda: gguf_file(
        tensors=1, body=gguf_text(b"w") + struct.pack("<I", 1 << 31)
    ),
    "overflow.gguf": lambda: gguf_file(tensors=1, body=gguf_tensor(b"w", [1 << 40] * 4, 0, 0)),
    "beyond.gguf": lambda: gguf_file(tensors=1, body=gguf_tensor(b"w", [1 << 30], 0, 0)),
    "offset.gguf": lambda: gguf_file(tensors=1, body=gguf_tensor(b"w", [1], 0, (1 << 64) - 32)),
    "blocks.gguf": lambda: gguf_file(tensors=1, body=gguf_tensor(b"w", [33], 8, 0)),
    "overlap.gguf": lambda: gguf_file(
        tensors=2, body=gguf_tensor(b"a", [8], 0, 0) + gguf_tensor(b"b", [8], 0, 16)
    ),
    "version.gguf": lambda: gguf_file(version=77),
    "big_endian.gguf": lambda: gguf_file(version=3 << 24),
}


# These take seconds each until a limit is reached.
SLOW = {
    *("shared_lists.pth", "paths.pth", "dict_copies.pth", "long_keys.pth", "arguments.pth"),
    *("reconstructed.pth", "copies.pth"),
}
