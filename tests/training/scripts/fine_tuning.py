# The layers of a pretrained body are frozen, and later some of them are not.
import torch
from reproducible import print_result, seed_all
from torch import nn

seed_all(15)
body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 12))
model = nn.Sequential(body, nn.ReLU(), nn.Linear(12, 2))
for parameter in body.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)
losses = []
for step in range(8):
    if step == 4:
        for parameter in body[3].parameters():
            parameter.requires_grad = True
        optimizer.add_param_group({"params": body[3].parameters(), "lr": 0.01})
    x, y = torch.randn(10, 6), torch.randint(0, 2, (10,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print_result(losses, model)
