# A pipeline of transformers for sounds.
import numpy as np
import torch
from transformers import (
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForSequenceClassification,
    pipeline,
)

torch.manual_seed(0)
config = Wav2Vec2Config(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    conv_dim=(8, 8),
    conv_kernel=(10, 3),
    conv_stride=(5, 2),
    num_conv_pos_embeddings=8,
    num_conv_pos_embedding_groups=2,
)
pipe = pipeline(
    "audio-classification",
    model=Wav2Vec2ForSequenceClassification(config).eval(),
    feature_extractor=Wav2Vec2FeatureExtractor(),
    device="cpu",
)
sound = np.sin(np.arange(4000, dtype=np.float32) / 10)
for result in pipe({"raw": sound, "sampling_rate": 16000}):
    print(result["label"], result["score"])
