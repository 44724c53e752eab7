# A pipeline of transformers for images.
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor, pipeline

torch.manual_seed(0)
config = ViTConfig(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    image_size=32,
    patch_size=8,
)
pipe = pipeline(
    "image-classification",
    model=ViTForImageClassification(config),
    image_processor=ViTImageProcessor(size={"height": 32, "width": 32}),
    device="cpu",
)
for color in ("red", "navy"):
    for result in pipe(Image.new("RGB", (40, 30), color), top_k=2):
        print(color, result["label"], result["score"])
