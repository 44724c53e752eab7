# Two encoders as in CLIP, each called by a method of the model, which is not called itself.
import torch
from torch import nn


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.GELU(), nn.Linear(32, 8))
        self.textual = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 8))

    def encode_image(self, image):
        return nn.functional.normalize(self.visual(image), dim=-1)

    def encode_text(self, text):
        return nn.functional.normalize(self.textual(text).mean(1), dim=-1)


torch.manual_seed(0)
model = Clip().eval()
with torch.no_grad():
    images = model.encode_image(torch.rand(3, 3, 4, 4))
    texts = model.encode_text(torch.randint(50, (2, 5)))
print((images @ texts.T).softmax(-1).tolist())
