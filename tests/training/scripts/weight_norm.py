# Parametrized weights, the old weight_norm, and spectral_norm with its own power iteration.
import warnings

import torch
from reproducible import print_result, seed_all
from torch import nn
from torch.nn.utils import parametrizations

warnings.simplefilter("ignore", FutureWarning)
seed_all(18)
model = nn.Sequential(
    parametrizations.weight_norm(nn.Linear(4, 8)),
    nn.ELU(),
    parametrizations.spectral_norm(nn.Linear(8, 8)),
    nn.ELU(),
    nn.utils.weight_norm(nn.Linear(8, 1)),
)
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
losses = []
for _ in range(8):
    x = torch.randn(8, 4)
    loss = (model(x) - x.norm(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print_result(losses, model)
