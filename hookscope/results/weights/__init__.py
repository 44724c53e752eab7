"""Files of weights: safetensors, ``torch.save``, numpy and GGUF, read without torch."""
