# Batches from worker processes, which are forked or spawned.
import random
import sys

import torch
from reproducible import print_result, seed_all
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        x = torch.linspace(0, 6, 10) + index
        return x.sin() + 0.01 * torch.randn(10) + 0.01 * random.random(), x.cos().mean()


def main(start_method):
    seed_all(3)
    loader = DataLoader(
        Waves(),
        batch_size=4,
        shuffle=True,
        num_workers=1 if start_method == "spawn" else 2,
        multiprocessing_context=start_method,
        persistent_workers=True,
    )
    model = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(2):
        for x, y in loader:
            loss = (model(x).squeeze(1) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    print_result(losses, model)


if __name__ == "__main__":
    main(sys.argv[1])
