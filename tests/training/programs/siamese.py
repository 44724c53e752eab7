# A Siamese network: one branch is called twice, by a model that holds it twice.
import torch
from torch import nn


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))
        self.twin = self.branch

    def forward(self, one, other):
        return self.branch(one), self.twin(other)


torch.manual_seed(0)
siamese = Siamese()
distance = nn.PairwiseDistance()
for _ in range(3):
    with torch.no_grad():
        print(distance(*siamese(torch.randn(2, 8), torch.randn(2, 8))).tolist())
