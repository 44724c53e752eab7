# Models of torchvision: a list of images and of dicts, a dict, an attribute of an object.
import sys

import torch
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.models.segmentation import lraspp_mobilenet_v3_large


class Segmenter:
    def __init__(self):
        self.network = lraspp_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=3
        ).eval()

    @torch.no_grad()
    def mask(self, image):
        return self.network(image.unsqueeze(0))["out"].argmax(1)


torch.manual_seed(int(sys.argv[1]))
segmenter = Segmenter()
for size in (64, 96):
    print(torch.bincount(segmenter.mask(torch.rand(3, size, size)).flatten(), minlength=3).tolist())
detector = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
detector.eval()
with torch.inference_mode():
    found = detector([torch.rand(3, 64, 80), torch.rand(3, 70, 60)])
for one in found:
    print(len(one["boxes"]), one["scores"][:3].tolist(), one["labels"][:3].tolist())
