"""Scripts whose gradients become NaN, have a wrong shape, or are not reduced by DDP.

The line that is to be named ends with ``# here``, the call of a custom function with ``# called``.
"""

from __future__ import annotations

from tests.training.failing_steps import HEAD, NET, indented

# The bodies of ``forward``; the loss is finite.
NAN_FORWARDS = {
    "sqrt": "x = self.a(x)\nsize = (x * 0).square().sum(1).sqrt()  # here\n"
    "return self.b(x) + size[:, None]",
    "where": "x = self.a(x)\nreturn torch.where(x > 0, x.sqrt(), x)  # here",
    "log": "x = self.a(x).abs() * (torch.arange(4) > 0)\nscores = torch.log(x)  # here\n"
    "return torch.where(x > 0, scores, 0)",
    "division": "x = self.a(x).abs() * (torch.arange(4) > 0)\nshare = x / x  # here\n"
    "return torch.where(x > 0, share, x)",
    "power": "return (self.a(x) * 0) ** 0.5  # here",
    "acos": "x = self.a(x) * 0 + 1\nreturn self.b(x.acos())  # here",
    "softmax": "scores = self.a(x) + torch.tensor([0, 0, -torch.inf, 0, 0])[:, None]\n"
    "weights = scores.softmax(1)  # here\nreturn weights[[0, 1, 3, 4]]",
    "float16": "x = self.a(x).half()\nx = x.float()  # here\nreturn x * 300",
}
NAN_WITHOUT_CHANGE = {"softmax", "float16"}

_FINITE_FORWARDS = (
    "x = self.a(x)\nreturn torch.where(x > 0, x.clamp_min(1e-6).sqrt(), x)",
    "return self.b(x) + (self.a(x) * 0).norm(dim=1, keepdim=True)",
    "return ((self.a(x) * 0).square().sum(1) + 1e-6).sqrt()",
    "return torch.relu(self.a(x)) ** 0.5",  # infinite within the graph, and finite behind the ReLU
    "x = self.a(x).masked_fill(torch.arange(4) == 2, -torch.inf)\nreturn x.softmax(1)",
)

_FUNCTION = """\
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, {arguments}):
        ctx.save_for_backward(x, w)
        return x @ w
    @staticmethod
    def backward(ctx, g):  # here
        x, w = ctx.saved_tensors
        return {gradients}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.w = nn.Linear(4, 4), nn.Parameter(torch.ones(4, 2))
    def forward(self, x):
        x = self.a(x)
        return Product.apply({call})  # called
net = Net()
for step in range(2):
    net(torch.randn(5, 4)).sum().backward()
"""


def _function(gradients: str, first: str = "") -> str:
    arguments, call = f"{first}x, w", f"{first and '2.0, '}x, self.w"
    return HEAD + _FUNCTION.format(arguments=arguments, call=call, gradients=gradients)


_NEW_STYLE = (
    _function("g @ w.t(), (x.t() @ g)[:, :1].reshape(4)")
    .replace("forward(ctx, x, w):\n        ctx.save_for_backward(x, w)\n", "forward(x, w):\n")
    .replace(
        "    @staticmethod\n    def backward",
        "    @staticmethod\n    def setup_context(ctx, inputs, output):\n"
        "        ctx.save_for_backward(*inputs)\n    @staticmethod\n    def backward",
    )
)

# Each with a pattern of the story.
FUNCTIONS = {
    "transposed": (_function("g @ w.t(), g.t() @ x"), "of 2x4 .*`w`"),
    "swapped": (_function("x.t() @ g, g @ w.t()"), "of 4x2 .*`x`"),
    "missing": (_function("g @ w.t()"), "2 arguments: x, w"),
    "after_a_number": (_function("None, g @ w.t(), g.t() @ x", "scale, "), "`w`.* 4x2"),
    "new_style": (_NEW_STYLE, "of 4 .*`w`"),
    "number": (_function("g @ w.t(), 1.0"), "tensor"),
}
CORRECT_FUNCTIONS = {
    "product": _function("g @ w.t(), x.t() @ g"),
    "after_a_number": _function("None, g @ w.t(), x.t() @ g", "scale, "),
    "one_more": _function("g @ w.t(), x.t() @ g, None"),
    "of_one_row": _function("g @ w.t(), (x.t() @ g)[None]"),  # PyTorch sums it
}

_PARALLEL = """\
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.other = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)
    def forward(self, x):
{forward}
def main():
    {begin}
    net = DistributedDataParallel(Net(), {options})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        {backward}
        optimizer.step()
    dist.destroy_process_group()
main()
"""
ALONE = "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)"
TOGETHER = "dist.init_process_group('gloo')"
_ONE = "net(torch.randn(5, 4)).sum().backward()"
_BOTH = "first, second = net(torch.randn(5, 4))\n"


def parallel(name: str, begin: str = ALONE) -> str:
    """Return a script of one process, or with ``TOGETHER`` of several."""
    forward, backward, _, *options = (PARALLEL | CORRECT_PARALLEL)[name]
    text = _PARALLEL.format(
        forward=indented(forward, 8),
        backward=indented(backward, 8).lstrip(),
        begin=begin,
        options="".join(options),
    )
    return HEAD + text


_TWO = "x = self.body(x)\nreturn self.head(x), self.other(x)"
_SUM = "x = self.body(x)\nreturn self.head(x) + self.other(x)"
# The body of ``forward``, the backward pass, a word of the story, and perhaps the options of
# DistributedDataParallel.
PARALLEL = {
    "not_called": ("return self.head(self.body(x))", _ONE, "No line"),
    "not_in_the_loss": (
        "x = self.body(x)\nother = self.other(x)  # here\nreturn self.head(x)",
        *(_ONE, "loss"),
    ),
    "no_grad": (
        "x = self.body(x)\nwith torch.no_grad():\n    other = self.other(x)  # here\n"
        "return self.head(x) + other",
        *(_ONE, "loss"),
    ),
    "frozen_later": (_SUM, f"net.module.other.requires_grad_(False)\n{_ONE}", "frozen"),
    "second_output": (f"{_TWO}  # here", f"{_BOTH}first.sum().backward()", "loss"),
    "two_passes": (
        _TWO,
        f"{_BOTH}first.sum().backward(retain_graph=True)\nsecond.sum().backward()  # here",
        "add the losses",
    ),
    "checkpointed": (
        "x = checkpoint(self.body, x.requires_grad_(), use_reentrant=True)  # here\n"
        "return self.head(x) + self.other(x)",
        *(_ONE, "use_reentrant=False", "find_unused_parameters=True"),
    ),
}
CORRECT_PARALLEL = {
    "all used": (_SUM, _ONE, ""),
    "unused, and found": (
        "return self.head(self.body(x))",
        _ONE,
        "",
        "find_unused_parameters=True",
    ),
    "checkpoints": (f"x = checkpoint(self.body, x, use_reentrant=False)\n{_SUM}", _ONE, ""),
}

NAN_SCRIPTS = {
    name: HEAD + NET.format(forward=indented(body, 8)) for name, body in NAN_FORWARDS.items()
}
FINITE = {
    f"finite {number}": HEAD + NET.format(forward=indented(body, 8))
    for number, body in enumerate(_FINITE_FORWARDS)
}
