# Options from the command line, messages on standard error, and an exit status.
import argparse
import sys
import warnings

import torch
from reproducible import print_result, seed_all
from torch import nn

parser = argparse.ArgumentParser(description="Logistic regression.")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", "-l", type=float, default=0.1)
parser.add_argument("--target", type=float, default=0.0, help="loss to reach")
parser.add_argument("--fail", action="store_true")
args = parser.parse_args()

seed_all(2)
x = torch.randn(32, 5)
y = (x.sum(1, keepdim=True) > 0).float()
model = nn.Linear(5, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
losses = []
for epoch in range(args.epochs):
    loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    print(f"epoch {epoch}: {losses[-1]:.4f}", file=sys.stderr)

print_result(losses, model)
if args.fail:
    loss.backward()  # its graph has been freed
if losses[-1] > args.target:
    warnings.warn(f"the loss is over {args.target}", stacklevel=1)
    sys.exit(3)
