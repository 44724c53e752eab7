"""Expressions of TorchScript by the types of their arguments, with values; each is a method."""

from __future__ import annotations

import math
from collections.abc import Iterator
from textwrap import indent

import torch

from tests.sources.torchscript.examples import Call, Example

HEAD = """
import cmath
import math
from typing import Any, Dict, List, Optional, Tuple
import torch
import torch.nn.functional as F
from torch import Tensor, nn

class Program(nn.Module):
    def forward(self):
        return 0
"""

MIN, MAX = -(2**63), 2**63 - 1
PAIRS = [(a, b) for a in (0, 1, 2, 7, -1, -7, 2**62, MIN, MAX) for b in (1, 2, -1, -3, 5, 0)]
BOOLS = (True, False)
WORDS = [("hello World",), ("",), ("ABC def",), ("123",), (" \t x ",), ("a,b,,c",), ("aXbXc",)]
PLACES = [(a, b) for a in (0, 2, -2, 9, -9) for b in (0, 4, -1, 9, -9)]
FLOATS = (0.0, -0.0, 1.5, -7.25, 1e308, math.inf, -math.inf, math.nan)
X = torch.arange(12.0).reshape(3, 4)
N = torch.arange(-3, 3)
IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))

# By a name: arguments, and values for them.
VALUES: dict[str, tuple[str, list[Call]]] = {
    "pairs": ("a: int, b: int", PAIRS),
    # The least integer by -1 ends the process.
    "quotients": ("a: int, b: int", [pair for pair in PAIRS if pair != (MIN, -1)]),
    "powers": ("a: int, b: int", [(2, 3), (-3, 2), (2, -1), (0, 0), (5, 62)]),
    "two floats": (
        "a: float, b: float",
        [(a, b) for a in FLOATS for b in (1.0, -2.5, 0.0, -0.0, math.inf, math.nan)],
    ),
    "mixed": (
        "a: int, b: float",
        [
            (a, b)
            for a in (0, 1, -3, 2**53 + 1, MAX)
            for b in (0.0, -3.5, 2.0**53, 2.0**63, math.nan)
        ],
    ),
    "bools": ("a: bool, b: bool", [(a, b) for a in BOOLS for b in BOOLS]),
    "complexes": (
        "a: complex, b: complex, c: float",
        [(1 + 2j, 0.5 - 1j, 0.5), (0j, 1j, -3.0), (complex(math.inf, 1), 2 + 0j, 0.0)],
    ),
    "floats": (
        "a: float",
        [(a,) for a in (0.5, 1.5, 2.5, -0.5, 0.0, 1e15, 1e16, 1e-7, 12345678.125)],
    ),
    "numerals": ("a: str", [("12",), ("-3",), ("x",), ("1.5",)]),
    "words": ("s: str", [*WORDS, ("été",), ("日本",), ("a\nb\r\nc\n",)]),
    "plain words": ("s: str", WORDS),
    "letters": ("s: str, a: int, b: int", [("hello", a, b) for a, b in PLACES]),
    "nothing": ("", [()]),
    "optional": ("n: Optional[int]", [(None,), (3,)]),
    "counts": ("n: int", [(3,), (1,)]),
    "bad counts": ("n: int", [(0,), (-1,)]),
    "places": ("items: List[int], a: int, b: int", [([0, 1, 2, 3, 4, 5], a, b) for a, b in PLACES]),
    "items": ("items: List[int], n: int", [([0, 1, 2], n) for n in (0, -1, -2, 2, 5, -4)]),
    "tuples": ("a: int, b: str, x: Tensor", [(1, "a", X)]),
    "any tensors": (
        "x: Tensor",
        [(X,), (N,), (torch.zeros(0, 3),), (torch.tensor(True),), (X.half(),)],
    ),
    "tensors of two types": ("x: Tensor", [(X,), (X.bfloat16(),)]),
    "a tensor": ("x: Tensor", [(X,)]),
    "an image": ("x: Tensor", [(IMAGE,)]),
    "ints in a tensor": ("x: Tensor", [(N,)]),
    "complex numbers in a tensor": ("x: Tensor", [(torch.tensor([1 + 2j, -1j]),)]),
    "tensors of one number": ("x: Tensor", [(torch.tensor([n]),) for n in (3.5, -2, True, 0)]),
}
# Below the name of values, each line is the result of a method.
TABLE = r"""
pairs
    a + b, a - b, a * b, -a
    a < b, a > b, a <= b, a >= b, a == b, a != b, a & b, a | b, a ^ b
    0 < a < b, a > b and a > 1, a < b or b == 1, not (a == b), 1 if a else 2
    min(a, b), max(a, b), sum([a, b]), abs(a), bool(a), float(a), str(a), f'{a}-{b}'
quotients
    a // b, a % b
    divmod(a, b)
    (a % 99) / b, a != 0 and b // a
powers
    a**b
    a << b, a >> b
two floats
    a + b, a - b, a * b, -a, abs(a), min(a, b), max(a, b), a**b
    a < b, a > b, a <= b, a >= b, a == b, a != b, bool(a), str(a), f'{a}'
    a / b
    a // b
    a % b
    math.floor(a), math.ceil(a)
    a in [a, b], b in [a], a not in [1.5]
    math.isnan(a), math.isinf(a), math.isfinite(a), math.copysign(b, a)
mixed
    a < b, a > b, a <= b, a >= b, a == b, a != b, a + b, a - b, a * b
    b < a, b > a, b <= a, b >= a, b == a, b != a, b + a, b - a, b * a, min(a, b)
bools
    a and b, a or b, not a, a & b, a | b, a ^ b, a == b, a != b, int(a), float(b)
    a < b, a > b, a <= b, a >= b, min(a, b), max(a, b), str(a)
complexes
    a + b, a - b, a * b, a / b, a**b, a == b, a != b, abs(a), a * c, c - b
    complex(c, 2.0), complex(1, 2), [a, b], torch.tensor(a), str(a), cmath.exp(b)
floats
    round(a), int(a), math.sin(a), math.atan2(a, 2.0), math.exp(-a), math.fmod(a, 0.3)
    math.log(a), math.sqrt(a)
    str([a, 1.5]), str((a, 1)), '{} {}'.format(a, -a), '%s' % a, '%f' % a
    math.pi, -math.inf, float('nan'), -0.0, 1e-320, 9007199254740993, 2 + 1j
numerals
    int(a)
    float(a)
words
    len(s), s + 'ü', s == 'ABC def', s != '', s < 'b', s > 'b', s <= 'b', s >= 'a'
    s.upper(), s.lower(), s.strip(), s.lstrip('a'), s.isdigit(), s.isupper()
    s.split(), s.split(','), s.split('X', 1), s.splitlines(), s.partition('X')
    s.find('l'), s.rfind('l', 4), s.count('X'), s.startswith('a'), s.endswith('c', 0, 3)
    s.replace('l', 'LL'), s.center(9, '*'), s.zfill(5), 'a' in s, 'a' not in s
    s in ['b', s], s in ['b']
    ','.join([s, 'b']), s.join(['1', '2']), f'{s}!', '%s=%d' % (s, 3)
    '{}{}'.format(s, None)
plain words
    [c for c in s.upper()], list(s)
    s[0], s[-1]
    s.index('l')
letters
    s[a:b], s[a:], s[:b], s[a:b:2]
nothing
    str([1, 2]), str(['a']), str((1, 'a')), str({'a': 1}), '{}'.format({'k': [1]})
    str(torch.float32), str(torch.device('cpu')), str(None), str(True), chr(98), ord('a')
    'it\'s "q" \\ \n {x} %s é', '"', "'", "'''", 'a\"\"\"b'
    torch.float32, torch.strided, torch.channels_last, torch.device('cpu'), torch.bool
    {i: str(i) for i in range(3)}, {str(i): i * i for i in [3, 1]}, dict([('a', 1)]), dict({'z': 1})
    list((1, 2)), [(i, str(i)) for i in range(2)], [[a * b for a in [1, 2]] for b in [3, 4]]
optional
    str(n), f'{n}', n is None
    torch.jit._unwrap_optional(n) + 1
counts
    [i for i in range(n)], [i for i in range(2, 9, n)], [i for i in range(9, 2, -n)]
    list(range(n))
    [n] * n, n * ['x'], [n, 2] + [3], [n] == [3]
bad counts
    [i for i in range(0, 5, n)]
    [1] * n
places
    items[a:b], items[a:], items[:b], items[:], items[a:b:2], items[1:-1], items[:-2]
items
    items[n]
    items[::n], items[2:0:n]
    items * n, n * items, items + items
    items.index(n)
    items.count(n), n in items, n not in items, len(items), bool(len(items)), sum(items)
tuples
    (a, b), (a, (b, 2.5))[1][0], (a,), len((a, b)), (a, b) + (5,), (a, x)
    (a, b, a, b)[1:3], (a, b, 2.5)[:2], (a, b, 2.5)[-2:], (a, b, a)[::2], (a, b, a)[::-1]
    (a, a) == (1, 2), (a, a) != (1, 2)
    x is x, x is None, x is not None, x is x + 1
any tensors
    x.dtype == torch.float32, x.dtype, x.shape, x.size(), x.dim(), x.numel(), x.device, x.layout
    x.requires_grad, x.is_cuda, x.is_leaf, x.itemsize, x.is_contiguous(), x.is_floating_point()
    x.to(torch.float64), x.to('cpu'), x.double(), x.half().float(), x.type_as(torch.zeros(1))
    x.to(torch.device('cpu'), torch.float64, True, True), x.to(x.device, torch.float16)
    torch.zeros_like(x, dtype=torch.int64), x.new_zeros(2)
    torch.zeros(2, dtype=x.dtype, device=x.device)
tensors of two types
    x.size(0), x.size(-1), x.shape[1], x.shape[-1:], x.stride(), len(x), list(x.shape)
    x[0], x[1, 2], x[:, 0], x[..., -1], x[None], x[1:, ::2], x[-1][1], x[x > 5], x[..., None, ::2]
    x[torch.tensor([0, 2])], x[torch.tensor([0, 2]), 1:], x[torch.tensor([True, False, True])]
    x + x, x - x, x * x, x / 2, x // 2, x % 3, 1 / (x + 1), 1 - x, 2 * x, x**2, 2**x, -x, abs(x)
    x == x, x != 2, x < 3, x <= 3, x > 3, x >= x, torch.add(x, 1, alpha=2), x.rsub(3)
    x @ x.t(), x.mm(x.T), torch.matmul(x, x[0]), torch.einsum('ij,kj->ik', x, x)
    x[None].bmm(x.t()[None])
    x.sum(), x.sum(0), x.mean(1, keepdim=True), x.max(), x.max(1), x.min(0)[0]
    x.argmax(1), x.amax(0), x.amin(1)
    torch.sort(x, dim=1, descending=True), torch.topk(x, 2), x.var(0, unbiased=False)
    x.norm(), x.cumsum(0)
    x.chunk(2, 1)[1], x.unbind(0)[0], x.split(2), torch.split(x, [1, 3], dim=1)
    x.reshape(-1), x.view(4, 3)
    x.flatten(), x.permute(1, 0), x.transpose(0, 1), x.t(), x.unsqueeze(1).squeeze()
    x.expand(2, 3, 4)
    x[0].expand_as(x), x.select(1, 0), x.t().contiguous(), torch.cat((x, x), dim=1)
    torch.stack([x, x + 1]), torch.where(x > 3, x, -x), x.masked_fill(x > 3, 0.5)
    torch.maximum(x, x.t().reshape(3, 4)), torch.minimum(x, x)
    x.exp(), (x + 1).log(), x.sqrt(), (x + 1).rsqrt(), x.sin(), x.cos(), x.neg()
    x.clamp(1, max=5), x.pow(2), F.relu(x), F.gelu(x), F.silu(x), F.elu(x), x.sigmoid(), x.tanh()
    F.leaky_relu(x, 0.2), F.hardtanh(x, -0.5, 0.5)
    F.hardswish(x), F.hardsigmoid(x), F.softmax(x, dim=1), F.log_softmax(x, 1)
    F.dropout(x, 0.5, training=False)
    F.linear(x, x), torch.addmm(x[:, :3], x, x.t()), torch.addcmul(x, x, x, value=2.0)
    F.layer_norm(x, [4]), x.clone().relu_(), x.clone().sigmoid_(), x.clone().tanh_()
    x.clone().clamp_(max=4.0), x.clone().add_(1)
    F.silu(x.clone(), inplace=True), F.elu(x.clone(), inplace=True)
    F.hardswish(x.clone(), inplace=True)
    F.hardsigmoid(x.clone(), inplace=True), F.hardtanh(x.clone(), inplace=True)
    F.leaky_relu(x.clone(), 0.1, True), x.clone().sub_(1), x.clone().mul_(x), x.clone().div_(2)
    F.embedding(torch.tensor([0, 2]), x)
a tensor
    torch.rand(2), torch.randn_like(x), F.dropout(x, 0.5, training=True)
    torch.randperm(4), x.clone().uniform_()
    torch.full((2,), 3.5), torch.arange(0, 1, 0.25), torch.eye(2)
    torch.tensor([[1, 2]], dtype=torch.float32)
    torch.tensor([x.size(0), 2]), torch.as_tensor(2), torch.scalar_tensor(2.5)
    torch.zeros([2]), torch.tensor([True])
    x.to_sparse(), torch.quantize_per_tensor(x, 0.5, 3, torch.quint8)
    torch.linalg.qr(x), torch.std_mean(x)
    F.cross_entropy(x, torch.tensor([0, 1, 3])), F.mse_loss(x, x + 1), F.smooth_l1_loss(x, x * 2)
    str(x), f'{x}', '{}'.format(x), torch.broadcast_tensors(x, x[0])
    torch.add(x, x, out=torch.empty_like(x)), x.new_ones(2, 2), x.detach().requires_grad_(True)
an image
    F.max_pool2d(x, 2), F.avg_pool2d(x, 3, stride=2), F.adaptive_avg_pool2d(x, (2, 2))
    F.group_norm(x, 3)
    F.interpolate(x, scale_factor=2.0), F.interpolate(x, size=[4, 5], mode='bilinear')
    F.pad(x, [1, 2]), F.conv2d(x, x), F.conv1d(x[0], x[0, :, :, :2])
    F.conv3d(x[None], x[None, :, :, :2, :2]), F.unfold(x, 2)
    F.batch_norm(x, torch.zeros(3), torch.ones(3))
    F.max_pool2d(x, 2, return_indices=True), F.glu(x[:, :2], 1)
    x.contiguous(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
ints in a tensor
    x & 3, x | 5, x ^ x, ~x, x << 1, x >> 1, (x > 0) & (x < 2), F.one_hot(x + 3)
complex numbers in a tensor
    x * 2, x.abs(), x.real, x.conj(), x * 1j, torch.view_as_real(x), torch.fft.fft(x)
tensors of one number
    float(x), int(x), bool(x)
    x.item(), x * x.item(), float(x.item()), x.item() + 1, x.item() == 3.5, x.item() > 1, [x.item()]
    x.item() is None, x.item() * 2.5, -x.item(), f'{x.item()} items', torch.full((2,), x.item())
"""

# One text for every type of items, and one for every type of keys.
LISTS: dict[str, list[Call]] = {
    "int": [([3, 1, 2, 1], [1], 1), ([], [], 1), ([2**62, -(2**62)], [3], 3)],
    "str": [(["b", "", "a", "é", "Z", "a"], ["a"], "a"), (["a"], ["a"], "b")],
    "bool": [([True, False, True], [False], True)],
    "float": [
        ([1.5, -0.0, 0.0, -2.0, math.inf], [0.0, -0.0], 0.0),
        ([0.5, math.nan, -0.0], [0.5, math.nan, -0.0], math.nan),
        ([1.5, 0.0], [1.5, -0.0], 1.5),
        # where PyTorch's sort is not stable
        ([float(i * 7 % 5) * (-1) ** i for i in range(40)], [1.0], 2.0),
    ],
    "Tensor": [([*torch.tensor([3, 1, 1])], [*torch.tensor([3, 1, 2])], torch.tensor(1))],
}
LIST_TEXT = """
def list_of_{type}(self, a: List[{type}], b: List[{type}], x: {type}):
    c = a.copy()
    c.sort()
    d = list(a)
    d.sort(reverse=True)
    e = [x, x]
    return c, d, sorted(a), a == a, a == b, a != b, e == e, e != [x]

def list_of_{type}_without(self, a: List[{type}], b: List[{type}], x: {type}):
    a.remove(x)
    return a, a.index(x)
"""
KEYS: dict[str, Call] = {
    "str": ("b", "a"),
    "int": (3, 1),
    "bool": (True, False),
    "float": (0.5, -1.0),
    "complex": (1j, 2 + 0j),
    "Tensor": (torch.ones(1), torch.zeros(1)),
}
DICT_TEXT = """
def dict_of_{key}(self, a: {key}, b: {key}):
    d = {{a: 1}}
    before = d[a], len(d), a in d, b in d, d.get(b), d.get(a), d.get(b, 7), list(d.values())
    d[b] = 5
    d[a] = d[a] + 1
    e = d.copy()
    e.setdefault(b, 9)
    d.setdefault(a, 9)
    del d[a]
    d[a] = 4
    f = dict(d)
    d.update(e)
    views = list(d.values()), len(list(d.keys())), [v for _, v in d.items()], len([k for k in d])
    popped = e.pop(b), e.pop(b, 8), f.popitem()[1], list(e.values())
    other = d
    d.clear()
    return before, views, popped, len(other), len(f), len(dict([(a, 1), (b, 2)]))

def dict_of_{key}_without(self, a: {key}, b: {key}):
    d = {{a: 1}}
    return d[b]

def dict_of_{key}_emptied(self, a: {key}, b: {key}):
    d = {{a: 1}}
    d.clear()
    return d.popitem()
"""


def _methods() -> Iterator[tuple[str, tuple[Call, ...], str]]:
    """Yield the name of a method, its calls and its source."""
    arguments, calls = VALUES["nothing"]
    for number, line in enumerate(TABLE.strip().splitlines()):
        if line.startswith(" "):
            name = f"e{number}"
            yield name, tuple(calls), f"def {name}(self, {arguments}):\n    return {line.strip()}\n"
        else:
            arguments, calls = VALUES[line]
    texts = {LIST_TEXT.format(type=kind): tuple(calls) for kind, calls in LISTS.items()}
    texts |= {DICT_TEXT.format(key=kind): (call,) for kind, call in KEYS.items()}
    for text, calls_of_text in texts.items():
        for source in text.strip().split("\n\n"):
            yield source.partition("(")[0].removeprefix("def "), calls_of_text, source


METHODS = list(_methods())
# What fails is shown by its expression.
EXPRESSIONS: dict[str, Example] = {
    source.partition("return ")[2].strip() if name[1:].isdigit() else name: Example(
        calls, method=name
    )
    for name, calls, source in METHODS
}
SOURCE = HEAD + "\n".join(indent(f"@torch.jit.export\n{source}", "    ") for *_, source in METHODS)
