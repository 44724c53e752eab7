"""Trains a small network whose parameters are sharded over all ranks (FSDP2)."""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--norms", help="folder for the norms of the full tensors")
parser.add_argument("--die-at", type=int, default=-1, help="step at which rank 1 ends")
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 6)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 6)) for _ in range(2)
        )
        self.head = nn.Linear(6, 1)  # which is on rank 0 alone

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def full(tensor):
    return tensor.detach().full_tensor().clone()


def say(text):
    """Print a line with one call, which the other rank cannot interrupt."""
    print(f"{text}\n", end="", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Net()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(100 + rank)
    norms = []
    for step in range(args.steps):
        if rank == 1 and step == args.die_at:
            os._exit(3)
        inputs, targets = torch.randn(5, 8), torch.randn(5, 1)
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        if args.norms:
            before = {name: full(weight) for name, weight in model.named_parameters()}
            grads = {name: full(weight.grad) for name, weight in model.named_parameters()}
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if args.norms:
            after = {name: full(weight) for name, weight in model.named_parameters()}
            norms.append(
                {
                    name: (grads[name].norm(), old.norm(), (after[name] - old).norm())
                    for name, old in before.items()
                }
            )
        say(f"rank {rank} step {step} loss {loss.item()!r}")
    parts = [weight.detach().to_local().numpy() for weight in model.parameters()]
    state = torch.get_rng_state().numpy().tobytes()
    digest = hashlib.sha256(b"".join(part.tobytes() for part in parts) + state).hexdigest()
    group = dist.distributed_c10d._get_default_group()
    say(f"rank {rank} collectives {group._get_sequence_number_for_group()}")
    say(f"rank {rank} weights {digest}")
    if args.norms:
        torch.save(norms, os.path.join(args.norms, f"rank{rank}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
