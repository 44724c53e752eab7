# One module is called twice, and two layers share a weight.
import torch
from reproducible import print_result, seed_all
from torch import nn


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 6)
        self.branch = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True))
        self.decoder = nn.Linear(6, 12, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, left, right):
        left, right = self.branch(self.embedding(left)), self.branch(self.embedding(right))
        return self.decoder(left), {"distance": (left - right).square().sum(-1), "both": [left]}


seed_all(17)
model = Siamese()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
losses = []
for _ in range(8):
    left, right = torch.randint(0, 12, (2, 10))
    logits, extra = model(left, right=right)
    loss = nn.functional.cross_entropy(logits, right) + 0.1 * extra["distance"].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print_result(losses, model)
