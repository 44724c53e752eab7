# A moving average of the model is a deep copy of it, and both are saved in each step.
import copy
import hashlib
import pickle
from pathlib import Path

import torch
from reproducible import print_result, seed_all
from torch import nn


def saved(what):
    torch.save(what, "saved.pt")
    return hashlib.sha256(Path("saved.pt").read_bytes()).hexdigest()


seed_all(12)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
ema = None
losses = []
for step in range(4):
    loss = model(torch.randn(8, 4)).square().mean()
    if step == 1:
        ema = copy.deepcopy(model)
    optimizer.zero_grad()
    print(step, saved(model), type(torch.load("saved.pt", weights_only=False)).__name__)
    loss.backward()
    optimizer.step()
    if ema is not None:
        with torch.no_grad():
            for average, weight in zip(ema.parameters(), model.parameters(), strict=True):
                average.lerp_(weight, 0.1)
        print("ema", saved({"ema": ema, "state": model.state_dict()}), ema(torch.ones(1, 4)))
    print(len(pickle.dumps(optimizer)))
    losses.append(loss.item())
print_result(losses, model, ema)
