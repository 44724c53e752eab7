"""Examples of strings: methods, formatting, indexing and slicing, all by TorchScript's rules."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

import math
from typing import Any, Optional

import torch
from torch import Tensor

from tests.sources.torchscript.examples import Table

STRINGS = Table()
WORDS = [("hello World",), ("",), ("ABC def",), ("123",), (" \t x ",), ("a,b,,c",), ("aXbXc",)]


@STRINGS.function(*WORDS, ("été",))
def letters_changed(self, s: str):
    return s.upper(), s.lower(), s.capitalize(), s.title(), s.swapcase()


@STRINGS.function(*WORDS)
def ends_stripped(self, s: str):
    return s.strip(), s.lstrip(), s.rstrip(), s.strip("a c"), s.lstrip("a"), s.rstrip("c")


@STRINGS.function(*WORDS, ("é",), ("Ab",))
def questions(self, s: str):
    return (
        s.isdigit(),
        s.isalpha(),
        s.isalnum(),
        s.isspace(),
        s.isupper(),
        s.islower(),
        s.istitle(),
        s.isdecimal(),
        s.isnumeric(),
        s.isprintable(),
    )


@STRINGS.function(*WORDS)
def ends_asked(self, s: str):
    return (
        s.startswith("a"),
        s.endswith("c"),
        s.startswith(""),
        s.endswith(""),
        s.startswith("e", 1),
        s.endswith("l", 0, 3),
    )


@STRINGS.function(*WORDS)
def places(self, s: str):
    return (
        s.find("l"),
        s.rfind("l"),
        s.find("l", 4),
        s.find("X", 0, 2),
        s.find(""),
        s.count("l"),
        s.count("X", 2),
    )


@STRINGS.function(("hello",), ("world",), ("x",))
def place_that_must_be(self, s: str):
    return s.index("l"), s.rindex("l")


@STRINGS.function(*WORDS)
def splits(self, s: str):
    return (
        s.split(),
        s.split(","),
        s.split("X", 1),
        s.rsplit("X", 1),
        s.splitlines(),
        s.partition("X"),
        s.rpartition("X"),
    )


@STRINGS.function(("a\nb\r\nc\n",), ("\n",), ("a\n\nb",))
def lines(self, s: str):
    return s.splitlines(), s.splitlines(True), s.expandtabs(), s.split("\n")


@STRINGS.function((["a", "b", "c"],), ([],), (["x"],))
def joins(self, parts: list[str]):
    return ",".join(parts), "".join(parts), "--".join(["a"])


@STRINGS.function(*WORDS)
def replaced(self, s: str):
    return (
        s.replace("l", "LL"),
        s.replace("X", ""),
        s.replace("a", "b", 1),
        s.replace("", "-") if len(s) > 100 else s,
    )


@STRINGS.function(("abc", 6), ("abc", 2), ("", 3), ("-5", 6))
def padded(self, s: str, n: int):
    return s.center(n), s.ljust(n, "*"), s.rjust(n), s.zfill(n), s.center(n, "+")


@STRINGS.function(("hello", 0), ("hello", -1), ("hello", 4), ("hello", 5), ("hello", -6), ("", 0))
def letter(self, s: str, i: int):
    return s[i]


@STRINGS.function(
    *[("hello", a, b) for a in (0, 2, -2, 9, -9) for b in (0, 4, -1, 9, -9)], ("", 0, 1)
)
def slices(self, s: str, a: int, b: int):
    return s[a:b], s[a:], s[:b], s[:], s[a:b:2], s[1:-1]


@STRINGS.function(("hello", -1), ("hello", 3), ("", -1))
def slice_by_steps(self, s: str, step: int):
    return s[::step], s[1:4:step]


@STRINGS.function(("abc", "b"), ("abc", "z"), ("", ""))
def contained(self, s: str, part: str):
    return part in s, part not in s, s == part, s != part, s < part, s >= part, s + part, s + "x"


@STRINGS.function(("é",), ("日本",), ("abc",))
def length_beyond_ascii(self, s: str):
    return len(s)


@STRINGS.function(("éa",), ("日本",))
def letters_beyond_ascii(self, s: str):
    return (
        s + "ü",
        s == "éa",
        s < "f",
        s.upper(),
        "a" in s,
        s.replace("a", "b"),
        s[0:2] if len(s) > 6 else s,
    )


@STRINGS.function(("éa",), ("日本",))
def half_a_letter(self, s: str):
    return s[0]


@STRINGS.function((1, 2.5, True))
def formatted(self, a: int, b: float, c: bool):
    return (
        "{} {} {}".format(a, b, c),
        f"{a}-{b}-{c}",
        "{}{}".format("x", None),
        "{}".format([a, 2]),
        "{{}}" if False else "",
    )


@STRINGS.function(
    (1.0, 1e20), (1e16, 1e-5), (0.1, -0.0), (math.nan, math.inf), (100000.0, 1234567.0)
)
def formatted_floats(self, a: float, b: float):
    return "{} {}".format(a, b), f"{a} {b}", str(a), str(b), str([a, b]), "%s" % a, str((a, b))


@STRINGS.function((torch.arange(3.0),), (torch.tensor(2),))
def formatted_tensor(self, x: Tensor):
    return "{}".format(x), f"{x}", str(x)


@STRINGS.function(())
def formatted_containers(self):
    return (
        str([1, 2]),
        str(["a", "b"]),
        str((1, "a")),
        str({"a": 1}),
        str([1.5, 2.0]),
        str([True]),
        "{}".format({"k": [1]}),
        "{}".format(("a", 2)),
        str([[1], [2]]),
        str({1: "x"}),
    )


@STRINGS.function((None,), (3,))
def formatted_optional(self, n: Optional[int]):
    return str(n), "{}".format(n), f"{n}"


@STRINGS.function((3, "x", 2.5))
def percent(self, a: int, b: str, c: float):
    return (
        "%d items" % a,
        "%s and %s" % (a, b),
        "%f" % c,
        "%.2f" % c if False else "",
        "%s" % b,
        "%i%%" % a,
        "%s" % c,
    )


@STRINGS.function((3,))
def percent_too_many(self, a: int):
    return "%d %d" % (a, a), "%x" % a, "%e" % 1.5, "%g" % 2.5


@STRINGS.function((65,), (97,))
def letters_and_numbers(self, n: int):
    return chr(n), ord("a"), hex(n), oct(n), bin(n), str(n)


@STRINGS.function((-5,), (0,), (255,))
def number_bases(self, n: int):
    return hex(n), bin(n), oct(n)


@STRINGS.function(("abc",))
def hash_is_left_out(self, s: str):
    return len(s) + s.count("a")


@STRINGS.function(("abc",))
def iterated(self, s: str):
    out = ""
    for c in s.upper():
        out = c + out
    return out, [c for c in "xyz"], list(s)


@STRINGS.function((2,))
def text_of_types(self, n: int):
    return str(torch.float32), str(torch.device("cpu")), str(n), str(None), str(True), str(2 + 1j)


@STRINGS.function((2, "a"))
def text_of_any(self, n: int, s: str):
    a: Any = n
    return str(a), "{}".format(a)


@STRINGS.function(('it\'s "q" \\ \n {x} %s é \x00',))
def odd_constants(self, s: str):
    return s == 'it\'s "q" \\ \n {x} %s é', 'it\'s "q" \\ \n {x} %s', '"', "'", "'''", 'a"""b'
