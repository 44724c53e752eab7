# A small convolutional network on made-up digits: train(), test() and main().
import torch
import torch.nn.functional as F
from reproducible import print_result, seed_all
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout2d(0.25)
        self.fc = nn.Linear(4 * 3 * 3, 10)

    def forward(self, x):
        x = F.relu(self.bn(self.conv1(x)))
        x = self.dropout(F.max_pool2d(x, 2))
        return F.log_softmax(self.fc(torch.flatten(x, 1)), dim=1)


def train(model, batches, optimizer, epoch, losses):
    model.train()
    for batch, (data, target) in enumerate(batches):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if batch % 3 == 0:
            print(f"Train epoch {epoch} [{batch}/{len(batches)}]\tloss {loss.item():.6f}")


def test(model, batches):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in batches:
            correct += (model(data).argmax(1) == target).sum().item()
    print(f"Test: {correct} of {sum(len(target) for _, target in batches)} correct")


def main():
    seed_all(1)
    batches = [(torch.randn(8, 1, 8, 8), torch.randint(0, 10, (8,))) for _ in range(6)]
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    losses = []
    for epoch in range(1, 4):
        train(model, batches, optimizer, epoch, losses)
        test(model, batches)
        scheduler.step()
    print_result(losses, model)


if __name__ == "__main__":
    main()
