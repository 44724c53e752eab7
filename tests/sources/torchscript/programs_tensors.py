"""Examples of what scripted code does with tensors: attributes, indexing, changes in place, dtypes."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.sources.torchscript.examples import Table

TENSORS = Table()
X = torch.arange(12.0).reshape(3, 4)
N = torch.arange(-3, 3)


@TENSORS.function((X,), (N,), (torch.zeros(2, dtype=torch.float64),), (torch.tensor(True),))
def attributes(self, x: Tensor):
    return (
        x.dtype == torch.float32,
        x.dtype == torch.int64,
        x.is_cuda,
        x.shape,
        x.size(),
        x.dim(),
        x.ndim,
        x.numel(),
        x.requires_grad,
        x.is_floating_point(),
        x.device == torch.device("cpu"),
        x.is_sparse,
        x.device.type,
        x.layout == torch.strided,
        x.is_quantized,
        x.is_contiguous(),
        x.element_size(),
        x.is_complex(),
        x.is_leaf,
        x.itemsize,
        x.nbytes if False else 0,
        x.is_meta,
        x.is_mkldnn,
    )


@TENSORS.function((X,))
def sizes(self, x: Tensor):
    a, b = x.shape
    return (
        x.size(0),
        x.size(-1),
        x.shape[1],
        a * b,
        x.stride(),
        x.stride(0),
        len(x),
        x.storage_offset(),
        x.shape[-1:],
        list(x.shape),
    )


@TENSORS.function((X,), (N,))
def dtypes(self, x: Tensor):
    return (
        x.to(torch.float64),
        x.to(dtype=torch.int32),
        x.to("cpu"),
        x.to(x.device, torch.float16),
        x.double(),
        x.half().float(),
        x.int(),
        x.to(torch.bool),
        x.type_as(torch.zeros(1, dtype=torch.int8)),
        x.to(torch.zeros(1).long()),
        x.to(torch.bfloat16),
        x.to(memory_format=torch.contiguous_format),
        x.to(torch.device("cpu"), torch.float64, True, True),
    )


@TENSORS.function((X,), (X.half(),))
def made_like(self, x: Tensor):
    return (
        torch.zeros(2, 3, dtype=x.dtype, device=x.device),
        torch.ones_like(x),
        x.new_zeros(2),
        torch.full((2,), 3.5),
        torch.arange(5),
        torch.arange(0, 1, 0.25),
        torch.linspace(0, 1, 5),
        torch.eye(2),
        torch.empty(0),
        torch.tensor(3),
        torch.tensor([1.5, 2.0]),
        torch.tensor([[1, 2], [3, 4]], dtype=torch.float32),
        torch.zeros([2]),
        torch.full((2,), 1),
        torch.tensor(2.5, dtype=torch.float64),
        torch.tensor([True]),
        torch.zeros_like(x, dtype=torch.int64),
        torch.tensor([x.size(0), 2]),
        torch.as_tensor([1, 2]),
        torch.scalar_tensor(2),
    )


@TENSORS.function((3,), (5,))
def dtype_chosen_at_run_time(self, n: int):
    dtype = torch.float64 if n > 3 else torch.int32
    return torch.zeros(n, dtype=dtype), dtype == torch.float64, dtype


@TENSORS.function(())
def constants_of_torch(self):
    return (
        torch.float32,
        torch.int8,
        torch.strided,
        torch.channels_last,
        torch.device("cpu"),
        torch.bool,
    )


@TENSORS.function((torch.randn(1, 3, 4, 4, generator=torch.manual_seed(0)),))
def memory_formats(self, x: Tensor):
    y = x.contiguous(memory_format=torch.channels_last)
    return (
        y,
        y.is_contiguous(memory_format=torch.channels_last),
        y.stride(),
        x.to(memory_format=torch.channels_last),
    )


@TENSORS.function(
    (torch.tensor(3.5),), (torch.tensor(-2),), (torch.tensor([1.25]),), (torch.zeros(2),)
)
def numbers_of_tensors(self, x: Tensor):
    return float(x), int(x), bool(x), x.item()


@TENSORS.function((torch.tensor(3.5),), (torch.tensor(-2),), (torch.tensor(True),))
def item(self, x: Tensor):
    n = x.item()
    return n, x * n, float(n), int(n), n + 1, n * 2.5, n == 3.5, n > 1, [n]


@TENSORS.function((torch.tensor(3.5),), (torch.tensor(-2),))
def item_arithmetic(self, x: Tensor):
    n = x.item()
    m = (x + 1).item()
    return n - m, n / m, n * m, -n, n < m, max(int(n), 2), torch.full((2,), n), x.add(n, alpha=m)


@TENSORS.function((X,))
def tolist_of_floats(self, x: Tensor):
    a: List[List[float]] = x.tolist()
    b: List[float] = x[0].tolist()
    c: float = x[0, 0].tolist()
    return a, b, c


@TENSORS.function((N,), (X,), (N[:0],))
def tolist_of_ints(self, x: Tensor):
    a: List[int] = x.tolist()
    return a


@TENSORS.function((N > 0,), (N,))
def tolist_of_bools(self, x: Tensor):
    a: List[bool] = x.tolist()
    return a


@TENSORS.function((X.double(),), (X.half(),))
def tolist_of_other_floats(self, x: Tensor):
    a: List[List[float]] = x.tolist()
    return a


@TENSORS.function((X, 1), (X, -1), (X, 2))
def indexed(self, x: Tensor, i: int):
    return (
        x[0],
        x[i],
        x[-1, 2],
        x[:, i],
        x[..., 0],
        x[None],
        x[0, None],
        x[i:],
        x[:i],
        x[::2],
        x[:, 1:3],
        x[1:, ..., :2],
    )


@TENSORS.function((X, torch.tensor([0, 2])), (X, torch.tensor([True, False, True])))
def indexed_by_tensors(self, x: Tensor, i: Tensor):
    return x[i], x[i, 1:], x[i][:, 0], x[x > 5], x[i, ..., None]


@TENSORS.function((X,))
def assigned_by_index(self, x: Tensor):
    x[0] = 9.0
    x[1, 2] = -1
    x[:, 0] = torch.tensor([7.0, 8.0, 9.0])
    x[x > 8] = 0.5
    x[2] += 1
    x[torch.tensor([0, 1]), 3] = 4.0
    x[..., -1] *= 2
    x[0:2, 1:3] = torch.zeros(2, 2)
    return x


@TENSORS.function((X,))
def changed_in_place(self, x: Tensor):
    y = x
    x += 1
    x *= 2
    x -= 0.5
    x /= 3
    y.relu_().clamp_(max=4.0)
    z = x.view(-1)
    z.add_(1)
    z[0] = 100.0
    x.t_().transpose_(0, 1)
    return x, y, z, x is y


@TENSORS.function((X, 2), (X, 0))
def changed_in_place_in_a_loop(self, x: Tensor, n: int):
    views: List[Tensor] = []
    for i in range(n):
        x[i] = x[i] * 2
        views.append(x[i])
        x.add_(i)
    return x, views


@TENSORS.function((X, X + 1), (N, N * 2))
def operators(self, x: Tensor, y: Tensor):
    return (
        x + y,
        x - y,
        x * y,
        x == y,
        x < y,
        x >= 2,
        -x,
        x + 1,
        1 - x,
        2 * x,
        x * 0.5,
        abs(x),
        x != y,
        x.pow(2),
        x**2,
        2**x,
    )


@TENSORS.function((X, X + 1))
def divisions(self, x: Tensor, y: Tensor):
    return x / y, x // y, x % y, 1 / y, x / 2, 7 // y, 7 % y, x % 3, x // 2


@TENSORS.function((N, N + 10))
def bits(self, x: Tensor, y: Tensor):
    return x & y, x | y, x ^ y, ~x, x << 1, y >> 1, (x > 0) & (y > 0), x & 1


@TENSORS.function((X, X.t()))
def products(self, x: Tensor, y: Tensor):
    return (
        x @ y,
        x.mm(y),
        torch.matmul(x, y),
        torch.einsum("ij,jk->ik", x, y),
        x.t(),
        x.T,
        torch.einsum("ij->", [x]),
    )


@TENSORS.function((X,))
def reductions(self, x: Tensor):
    values, places = x.max(1)
    sort = torch.sort(x, dim=1, descending=True)
    return (
        x.sum(),
        x.sum(0),
        x.mean(1, keepdim=True),
        x.max(),
        values,
        places,
        x.min(0),
        sort[0],
        torch.topk(x, 2),
        x.argmax(),
        x.argmax(1),
        x.std(),
        x.var(0, unbiased=False),
        x.norm(),
        x.any(),
        x.all(),
        torch.std_mean(x),
        x.prod(1),
        x.cumsum(0),
    )


@TENSORS.function((X,))
def shapes_changed(self, x: Tensor):
    a, b = x.chunk(2, 1)
    c, d, e = x.unbind(0)
    f = x.split(2)
    g, h = torch.split(x, [1, 3], dim=1)
    return (
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        x.view(4, 3),
        x.reshape(-1),
        x.flatten(),
        x.permute(1, 0),
        x.unsqueeze(1).squeeze(),
        x.expand(2, 3, 4),
        torch.meshgrid(x[0], x[1], indexing="ij"),
    )


@TENSORS.function((X,))
def joined(self, x: Tensor):
    return (
        torch.cat([x, x]),
        torch.cat((x, x), dim=1),
        torch.stack([x, x + 1]),
        torch.hstack([x, x]),
        torch.where(x > 3, x, -x),
        torch.broadcast_tensors(x, x[0]),
    )


@TENSORS.function((torch.randn(2, 3, 8, 8, generator=torch.manual_seed(1)),))
def functional(self, x: Tensor):
    return (
        F.relu(x),
        F.gelu(x),
        F.softmax(x, dim=1),
        F.max_pool2d(x, 2),
        F.avg_pool2d(x, 3, stride=2),
        F.interpolate(x, scale_factor=2.0),
        F.interpolate(x, size=[4, 5], mode="bilinear", align_corners=False),
        F.pad(x, [1, 2]),
        F.layer_norm(x, [8, 8]),
        F.adaptive_avg_pool2d(x, (2, 2)),
        F.log_softmax(x, 1),
        F.normalize(x),
        F.unfold(x, 2),
        F.dropout(x, 0.5, training=False),
        F.one_hot(torch.tensor([0, 2])),
        F.max_pool2d(x, 2, return_indices=True),
        F.leaky_relu(x, 0.2),
        F.hardtanh(x, -0.5, 0.5),
        F.glu(x[:, :2], 1),
        F.cosine_similarity(x, x + 1),
    )


@TENSORS.function((X,))
def losses(self, x: Tensor):
    t = torch.tensor([0, 1, 3])
    return (
        F.cross_entropy(x, t),
        F.mse_loss(x, x + 1),
        F.nll_loss(x, t, reduction="none"),
        F.smooth_l1_loss(x, x * 2),
        F.binary_cross_entropy_with_logits(x, (x > 3).float()),
    )


@TENSORS.function((X,))
def random_numbers(self, x: Tensor):
    return (
        torch.rand(2),
        torch.randn_like(x),
        F.dropout(x, 0.5, training=True),
        torch.randint(0, 5, (3,)),
        torch.randperm(4),
        torch.bernoulli(torch.full((3,), 0.5)),
        x.clone().uniform_(),
        torch.normal(0.0, 1.0, [2]),
    )


@TENSORS.function((torch.tensor([1 + 2j, -1j]),))
def complex_tensors(self, x: Tensor):
    return (
        x * 2,
        x.abs(),
        x.real,
        x.imag,
        x.conj(),
        x * 1j,
        torch.view_as_real(x),
        torch.fft.fft(x),
        x.conj().resolve_conj(),
        torch.complex(x.real, x.imag),
        x.angle(),
    )


@TENSORS.function((X.half(),), (X.bfloat16(),))
def half_precision(self, x: Tensor):
    return x * 2, x.sum(), x @ x.t(), x.float() + x, x + 0.1, F.softmax(x, 1)


@TENSORS.function((torch.zeros(0, 3),), (torch.zeros(2, 0),))
def empty_tensors(self, x: Tensor):
    return (
        x.sum(),
        x.sum(0),
        x + 1,
        x.numel() == 0,
        torch.cat([x, x]),
        x.view(-1),
        x.t(),
        x.shape,
        x.mean(),
    )


@TENSORS.function((torch.tensor(2.5),), (torch.tensor(3),))
def tensors_without_dimensions(self, x: Tensor):
    return x + 1, x * x, x.view(1), x.shape, x.dim(), x > 2, x.unsqueeze(0), x.sum(), len(x.shape)


@TENSORS.function((X,), (X - 20,))
def tensors_decide(self, x: Tensor):
    if x.sum() > 0:
        y = x + 1
    elif bool(x.max() > 0):
        y = x - 1
    else:
        y = x * 2
    while y.sum() > 10:
        y = y / 2
    return y


@TENSORS.function((X,))
def gradient_switches(self, x: Tensor):
    y = x.detach().requires_grad_(True)
    z = (y * 2).sum()
    return y.requires_grad, z.requires_grad, z.detach().requires_grad, z.is_leaf


@TENSORS.function((X,))
def gradient_inside(self, x: Tensor):
    y = x.detach().requires_grad_(True)
    z = (y * y).sum()
    gradients = torch.autograd.grad([z], [y])
    z.backward()
    return gradients, y.grad


@TENSORS.function((X, None), (X, X + 1))
def optional_tensor(self, x: Tensor, y: Optional[Tensor] = None):
    if y is not None:
        x = x + y
    return x, y is None


@TENSORS.function((X,))
def results_by_name(self, x: Tensor):
    found = torch.max(x, 0)
    q = torch.linalg.qr(x)
    return found[0], found[1], q[0].abs(), torch.linalg.norm(x), torch.svd(x)[1]


@TENSORS.function((X, [2, 6]), (X, [12]), (X, [5]))
def shape_given(self, x: Tensor, shape: List[int]):
    return x.view(shape), x.reshape(shape + [1]), torch.zeros(shape), x.new_empty(shape).shape


@TENSORS.function((X,))
def tensor_identity(self, x: Tensor):
    y = x
    z = x + 1
    return x is y, x is z, x is not None, id(x) == id(y) if False else True


@TENSORS.function((X,))
def sparse_tensors(self, x: Tensor):
    s = x.to_sparse()
    return s.to_dense(), s.is_sparse, s.indices(), s.values(), s.layout == torch.sparse_coo


@TENSORS.function((X, 2), (X, 3))
def many_returned(self, x: Tensor, n: int) -> Tuple[List[Tensor], Tuple[Tensor, int]]:
    return [x * i for i in range(n)], (x, n)


@TENSORS.function((X,))
def out_variant(self, x: Tensor):
    y = torch.empty_like(x)
    torch.add(x, x, out=y)
    torch.mul(x, 2, out=x)
    return x, y


@TENSORS.function((X,))
def quantized_tensors(self, x: Tensor):
    q = torch.quantize_per_tensor(x, 0.5, 3, torch.quint8)
    return q, q.int_repr(), q.dequantize(), q.q_scale(), q.q_zero_point(), q.is_quantized
