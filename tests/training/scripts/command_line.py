# Made-up digits: options, train(), test() and main(), messages, a warning and an exit status.
import argparse
import sys
import warnings

import torch
import torch.nn.functional as F
from reproducible import print_result, seed_all
from torch import nn

seed_all(1)
model = nn.Sequential(
    *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.25)),
    *(nn.Flatten(), nn.Linear(4 * 3 * 3, 10), nn.LogSoftmax(1)),
)


def train(batches, optimizer, epoch, losses):
    model.train()
    for batch, (data, target) in enumerate(batches):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if batch % 3 == 0:
            print(f"epoch {epoch} [{batch}/{len(batches)}]\tloss {loss.item():.6f}")
    return loss


def test(batches):
    model.eval()
    with torch.no_grad():
        correct = sum((model(x).argmax(1) == y).sum().item() for x, y in batches)
    print(f"Test: {correct} correct", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description="Digits.")
    parser.add_argument("--epochs", "-e", type=int, default=2)
    parser.add_argument("--fail", action="store_true")
    args = parser.parse_args()
    batches = [(torch.randn(8, 1, 8, 8), torch.randint(0, 10, (8,))) for _ in range(6)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    losses = []
    for epoch in range(args.epochs):
        loss = train(batches, optimizer, epoch, losses)
        test(batches)
        scheduler.step()
    print_result(losses, model)
    if args.fail:
        loss.backward()  # its graph has been freed
    warnings.warn("not below the target", stacklevel=1)
    sys.exit(3)


if __name__ == "__main__":
    main()
