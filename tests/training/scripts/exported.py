# A trained model is scripted, traced, exported and captured by torch.fx, between the steps.
import warnings

import torch
from reproducible import print_result, seed_all
from torch import nn

warnings.simplefilter("ignore", FutureWarning)
seed_all(20)
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(5, 3)
convert = (
    torch.jit.script,
    lambda module: torch.jit.trace(module, x),
    lambda module: torch.export.export(module, (x,)).module(),
    torch.fx.symbolic_trace,
)
losses = []
for step in range(4):
    model(x)
    converted = convert[step](model)
    pair = converted(x).square().mean(), model(x).abs().mean()
    optimizer.zero_grad()
    torch.autograd.backward(loss for loss in pair)
    optimizer.step()
    losses += [loss.item() for loss in pair]
    print(getattr(converted, "code", ""))
print_result(losses, model)
