# A moving average of the model is a deep copy of it, and both are saved in each step.
import copy
import hashlib
import pickle

import torch
from reproducible import print_result, seed_all
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x))


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


seed_all(12)
model = Net()
optimizer = torch.optim.Adam(model.parameters())
ema = None
losses = []
for step in range(4):
    loss = model(torch.randn(8, 4)).square().mean()
    if step == 1:
        ema = copy.deepcopy(model)
    optimizer.zero_grad()
    torch.save(model, "amid.pt")
    loss.backward()
    optimizer.step()
    if ema is not None:
        with torch.no_grad():
            for average, weight in zip(ema.parameters(), model.parameters(), strict=True):
                average.lerp_(weight, 0.1)
        torch.save({"ema": ema, "optimizer": optimizer.state_dict()}, "ema.pt")
        print("ema", digest("ema.pt"), ema(torch.ones(1, 4)).tolist())
    torch.save({"model": model.state_dict(), "step": step}, "state.pt")
    print(step, digest("amid.pt"), digest("state.pt"), len(pickle.dumps(optimizer)))
    losses.append(loss.item())
print(type(torch.load("amid.pt", weights_only=False)).__name__)
print_result(losses, model, ema)
