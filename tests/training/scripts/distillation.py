# A student learns from the outputs of a larger teacher that does not change.
import torch
import torch.nn.functional as F
from reproducible import print_result, seed_all
from torch import nn


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


seed_all(16)
teacher = Teacher().eval()
student = nn.Sequential(nn.Flatten(), nn.Linear(40, 3))
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
losses = []
for _ in range(8):
    x = torch.randn(16, 5, 8)
    with torch.no_grad():
        teacher_logits = teacher(x)
    student_logits = student(x)
    soft = F.kl_div(
        F.log_softmax(student_logits / 2, -1), F.softmax(teacher_logits / 2, -1), reduction="sum"
    )
    optimizer.zero_grad()
    soft.backward()
    optimizer.step()
    losses += [soft.item(), teacher_logits.double().sum().item()]
print_result(losses, teacher, student)
