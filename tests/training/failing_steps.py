"""Scripts whose backward pass fails, in the style of the threads about it.

The line that is to be named ends with ``# here``. ``CORRECT`` are scripts of the kind that work.
"""

from __future__ import annotations

HEAD = """\
import torch, torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
"""

NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.act, self.inner = nn.ReLU(), nn.ReLU(inplace=True)
        self.register_buffer("memory", torch.zeros(5, 4))
    def forward(self, x):
{forward}
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(torch.randn(5, 4)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# The bodies of ``forward``.
FORWARDS = {
    "fpn": "x = self.act(self.a(x))\ny = self.b(x)\nx += y  # here\nreturn x",
    "scaled": "x = torch.tanh(self.a(x))\nx *= 2  # here\nreturn x",
    "relu_after_sigmoid": "x = torch.sigmoid(self.a(x))\nx.relu_()  # here\nreturn x",
    "functional_relu_": "x = torch.sigmoid(self.a(x))\nF.relu_(x)  # here\nreturn x",
    "functional_inplace": "x = self.a(x).sigmoid()\nreturn F.relu(x, inplace=True)  # here",
    "module_inplace": "x = torch.sigmoid(self.a(x))\nreturn self.c(self.inner(x))  # here",
    "mask": "x = self.a(x).exp()\nx[x > 1] = 0  # here\nreturn x",
    "slice": "x = self.a(x).tanh()\nx[:, 0] = 1  # here\nreturn x",
    "slice_scaled": "x = self.a(x).tanh()\nx[:, 1:] *= 2  # here\nreturn x",
    "masked_fill": "x = self.a(x).softmax(1)\nx.masked_fill_(x < 0.2, 0)  # here\nreturn x",
    "chained": "x = self.a(x).exp()\nreturn x.mul_(2).add(1)  # here",
    "out": "x = self.a(x).exp()\nwith torch.no_grad():\n"
    "    torch.add(x, 1, out=x)  # here\nreturn x",
    "view": "x = self.a(x).exp()\ny = x.view(-1)\ny += 1  # here\nreturn x",
    "own_weight": "y = self.a(x) @ self.a.weight\nwith torch.no_grad():\n"
    "    self.a.weight[0] = 0  # here\nreturn y",
    "buffer": "y = self.a(x) * self.memory\nself.memory += y.detach()  # here\nreturn y",
    "loop": "x = self.act(self.a(x))\nfor layer in (self.b, self.c):\n"
    "    x += layer(x)  # here\nreturn x",
    "weight": "x = self.b(self.act(self.a(x)))\nwith torch.no_grad():\n"
    "    self.b.weight.mul_(0.9)  # here\nreturn x",
    "swapped": "x = self.a(x).sigmoid()\nx[0], x[1] = x[1].clone(), x[0].clone()  # here\nreturn x",
    "own_part": "out = torch.zeros(5, 4, 4)\nout[:, 0] = x\nfor i in range(1, 4):\n"
    "    out[:, i] = self.a(out[:, i - 1]).tanh()  # here\nreturn out",
    "chain": "x = self.a(x).exp()\nx.mul_(2).add_(1)  # here\nreturn x",
    "thrown_away": "parts = [self.a(x).exp(), self.b(x).exp()]\n"
    "[one.mul_(2) for one in parts]  # here\nreturn sum(parts)",
    "dropout": "x = self.a(x).exp()\nreturn F.dropout(x, 0.5, True, True)  # here",
}

# Scripts of their own.
OWN = {
    "function": """\
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return 2 * x * grad
layer = nn.Linear(4, 4)
for step in range(2):
    x = layer(torch.randn(3, 4))
    y = Scale.apply(x)
    x *= 0.5  # here
    y.sum().backward()
""",
    "gan": """\
G, D = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for step in range(2):
    fake = G(torch.randn(5, 4))
    scores = D(fake)
    d_loss, g_loss = scores.mean(), -scores.mean()
    od.zero_grad()
    d_loss.backward(retain_graph=True)
    od.step()  # here
    og.zero_grad()
    g_loss.backward()
    og.step()
""",
    "ema": """\
net, ema = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), nn.Linear(4, 4)
for step in range(2):
    loss = net(torch.randn(5, 4)).mean()
    with torch.no_grad():
        for one in net[2].parameters():
            one.mul_(0.99).add_(0.01)  # here
    loss.backward()
""",
    "hook": """\
net = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4))
def clip(module, args, output):
    output.clamp_(0.2, 0.8)  # here
net[1].register_forward_hook(clip)
for step in range(2):
    net(torch.randn(5, 4)).mean().backward()
""",
    "hidden": """\
rnn, head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)
h = torch.zeros(1, 2, 4)
for step in range(4):
    out, h = rnn(torch.randn(2, 6, 3), h)  # here
    head(out).mean().backward()
""",
    "running": """\
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
total = 0
for step in range(4):
    total = total + net(torch.randn(5, 4)).mean()  # here
    total.backward()
""",
    "summed": """\
def train():
    net, total = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), 0.0
    for step in range(3):
        total += net(torch.randn(5, 4)).square().mean()  # here
        total.backward()
train()
""",
    "retained": """\
rnn, head = nn.RNN(3, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
h = torch.zeros(1, 2, 4)
for step in range(4):
    out, h = rnn(torch.randn(6, 2, 3), h)
    optimizer.zero_grad()
    head(out).mean().backward(retain_graph=True)
    optimizer.step()  # here
""",
    "bank": """\
net, bank = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), []
for step in range(3):
    bank.append(net(torch.randn(5, 4)))  # here
    torch.cat(bank).logsumexp(0).sum().backward()
""",
    "max_norm": """\
table, head = nn.Embedding(6, 4, max_norm=0.5), nn.Linear(4, 4)
for step in range(2):
    keys = head(table.weight)
    (table(torch.arange(3)) @ keys.t()).sum().backward()  # here
""",
    "on_one_line": """\
G, D = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for x in torch.randn(2, 5, 4):
    fake = G(x); score = D(fake).mean()  # here
    og.zero_grad(); score.backward(); og.step()
    loss = D(fake).square().mean()
    od.zero_grad(); loss.backward(); od.step()
""",
    "average": """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.average = nn.Linear(4, 8), nn.Linear(8, 4), torch.zeros(8)
    def step(self, batch):
        z = self.a(batch).tanh()
        self.average = 0.9 * self.average + 0.1 * z.mean(0)  # here
        return self.b(z).square().mean() + self.average.square().sum()
def train(model):
    for step in range(3):
        model.step(torch.randn(5, 4)).backward()
train(Model())
""",
    "shared_heads": """\
def train():
    body = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    heads = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
    for epoch in range(2):
        features = body(torch.randn(2, 3))  # here
        for head in heads:
            head(features).sum().backward()
train()
""",
    "twice": """\
w = torch.randn(3, requires_grad=True)
loss = (w**2).sum()  # here
loss.backward()
loss.backward()
""",
}

NO_GRADIENTS = {
    "no_grad": "with torch.no_grad():  # mode\n        out = net(x)  # here\n    loss = out.mean()",
    "detach": "out = net(x).detach()  # here\n    loss = out.mean()",
    "data": "out = net(x).data  # here\n    loss = out.mean()",
    "argmax": "out = net(x).argmax(1)  # here\n    loss = out.float().mean()",
    "cast": "out = net(x).long()  # here\n    loss = (out * 1.0).mean()",
    "item": "value = net(x).mean().item()  # here\n    loss = torch.tensor(value)",
    "numpy": "value = net(x).detach().numpy()  # here\n    loss = torch.from_numpy(value).mean()",
    "copied": "out = torch.tensor([net(x).mean(), net(-x).mean()])  # here\n    loss = out.sum()",
    "first_order": "x.requires_grad_()\n    out, = torch.autograd.grad(net(x).sum(), x)  # here\n"
    "    loss = out.norm()",
    "switched_off": "torch.set_grad_enabled(False)\n    loss = net(x).mean()  # here",
    "rounded": "out = net(x) > 0  # here\n    loss = out.float().mean()",
}

NO_GRADIENT = """\
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
for step in range(2):
    x = torch.randn(5, 4)
    {body}
    loss.backward()
"""


def indented(text: str, spaces: int) -> str:
    """Return a text with each line indented."""
    return "\n".join(" " * spaces + line for line in text.splitlines())


SCRIPTS: dict[str, str] = {
    **{name: HEAD + NET.format(forward=indented(body, 8)) for name, body in FORWARDS.items()},
    **{name: HEAD + script for name, script in OWN.items()},
    **{name: HEAD + NO_GRADIENT.format(body=body) for name, body in NO_GRADIENTS.items()},
}

_CORRECT_FORWARDS = (
    "x = self.act(self.a(x))\nreturn x + self.b(x)",
    "x = self.a(x)\nx += 1\nreturn x",
    "x = self.a(x)\nx[:, 0] = 0\nreturn x",
    "x = self.a(x).exp().clone()\nx *= 2\nreturn x",
    "x = self.a(x).exp().clone()\nx[x > 1] = 0\nreturn x",
    "return self.inner(self.a(x))",
    "return F.relu(self.a(x), inplace=True)",
    "x = self.act(self.a(x))\nx = x.mul(2)\nreturn x.detach() + self.b(x)",
    "x = self.a(x)\nself.memory.copy_(x.detach())\nreturn x",
    "x = self.a(x)\nself.memory += 1\nreturn x",
    "return F.dropout(self.a(x), 0.5, True, True)",
    "x = self.a(x)\nx.clamp_(0, 1)\nreturn x",
    "x = self.a(x)\nx.data.mul_(0.5)\nreturn x",
    "with torch.no_grad():\n    y = self.b(x)\nreturn self.a(x) + y",
    "return self.a(x) * self.a(x).detach()",
    "weights = self.a(x).argmax(1)\nreturn self.b(x)[weights > 0].sum() + self.c(x)",
    "out = x.new_zeros(5, 4)\nout[:, :2] = self.a(x)[:, :2]\nreturn out",
    "x = self.a(x)\ny = x.view(-1)\ny += 1\nreturn x",
    "return torch.stack([layer(x).sum() for layer in (self.a, self.b, self.c)])",
    "x = self.a(x).sigmoid()\nreturn torch.where(x > 0.5, x, 0)",
)
CORRECT = {
    f"correct {number}": HEAD + NET.format(forward=indented(body, 8))
    for number, body in enumerate(_CORRECT_FORWARDS)
}
