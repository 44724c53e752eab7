"""Models of other packages that the tests go through, small enough for all of them to be run.

For timm a name with its arguments; for transformers a class of configurations, the class that the
configuration names, and values that make it small.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {"img_size": 64}

# As timm makes them.
TIMM: dict[str, dict[str, Any]] = {
    name: {}
    for name in (
        *("resnet10t", "resnetv2_50", "resnext26ts", "seresnet18", "res2net50d", "densenet121"),
        *("vgg11_bn", "inception_v4", "xception41", "dpn48b", "regnetx_002", "nf_regnet_b0"),
        *("mobilenetv3_small_050", "mobilenetv4_conv_small", "efficientnet_b0"),
        *("tf_efficientnet_lite0", "ghostnet_050", "mnasnet_small", "rexnet_100"),
        *("hardcorenas_a", "hrnet_w18_small", "dla34", "selecsls42", "cspresnet50"),
        *("convnext_atto", "convnextv2_atto", "repvgg_a0", "mobileone_s0", "fastvit_t8"),
        *("ghostnetv2_100", "swinv2_cr_tiny_224", "pvt_v2_b0", "mixer_s32_224", "gmlp_ti16_224"),
        *("resmlp_12_224", "convmixer_768_32", "poolformer_s12", "xcit_nano_12_p16_224"),
        *("crossvit_tiny_240", "levit_128s", "mobilevit_xxs", "edgenext_xx_small"),
        *("efficientformer_l1", "maxvit_rmlp_pico_rw_256", "coatnet_pico_rw_224", "davit_tiny"),
        *("focalnet_tiny_srf", "inception_next_atto", "starnet_s1", "tiny_vit_5m_224"),
        *("hiera_tiny_224", "volo_d1_224", "twins_pcpvt_small"),
    )
}
TIMM |= {
    "vit_tiny_patch16_224": SMALL,
    "deit_tiny_distilled_patch16_224": SMALL,
    "beit_base_patch16_224": {**SMALL, "depth": 2, "embed_dim": 48, "num_heads": 4},
    "eva02_tiny_patch14_224": {"img_size": 56},
    "swin_tiny_patch4_window7_224": {"img_size": 56},
    "cait_xxs24_224": {**SMALL, "depth": 3},
    "coat_lite_tiny": SMALL,
}

TEXT: dict[str, Any] = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2}
HEADS: dict[str, Any] = {**TEXT, "num_attention_heads": 4, "intermediate_size": 37}
DECODER: dict[str, Any] = {**HEADS, "num_key_value_heads": 2}
IMAGES: dict[str, Any] = {k: v for k, v in HEADS.items() if k != "vocab_size"} | {"image_size": 32}
PATCHES: dict[str, Any] = {**IMAGES, "patch_size": 8}
SEQ2SEQ: dict[str, Any] = {
    **{"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
    **{"encoder_ffn_dim": 37, "decoder_ffn_dim": 37, "max_position_embeddings": 40},
}
SOUND: dict[str, Any] = {
    **HEADS,
    **{"conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8)},
    **{"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16},
    **{"num_conv_pos_embedding_groups": 2},
}
_CLIP: dict[str, Any] = {
    "text_config": {**HEADS, "eos_token_id": 98, "bos_token_id": 97},
    "vision_config": PATCHES,
    "projection_dim": 16,
}

TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", {**HEADS, "num_labels": 3}),
    "roberta": ("RobertaForMaskedLM", {**HEADS, "max_position_embeddings": 40}),
    "distilbert": (
        "DistilBertForTokenClassification",
        {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37},
    ),
    "albert": ("AlbertModel", {**HEADS, "embedding_size": 16}),
    "electra": ("ElectraForPreTraining", {**HEADS, "embedding_size": 16}),
    "deberta-v2": ("DebertaV2Model", HEADS),
    "xlnet": (
        "XLNetLMHeadModel",
        {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 37},
    ),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "gpt_neox": ("GPTNeoXForCausalLM", HEADS),
    "opt": (
        "OPTForCausalLM",
        {**HEADS, "ffn_dim": 37, "word_embed_proj_dim": 32, "max_position_embeddings": 40},
    ),
    "llama": ("LlamaForCausalLM", DECODER),
    "mistral": ("MistralForCausalLM", DECODER),
    "qwen2": ("Qwen2ForCausalLM", DECODER),
    "gemma2": ("Gemma2ForCausalLM", {**DECODER, "head_dim": 8}),
    "phi": ("PhiForCausalLM", HEADS),
    "mixtral": ("MixtralForCausalLM", {**DECODER, "num_local_experts": 4, "intermediate_size": 48}),
    "bloom": ("BloomForCausalLM", {**TEXT, "n_head": 4, "n_layer": 2}),
    "mamba": ("MambaForCausalLM", {**TEXT, "state_size": 8}),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4},
    ),
    "bart": ("BartForConditionalGeneration", SEQ2SEQ),
    "vit": ("ViTForImageClassification", PATCHES),
    "deit": ("DeiTForImageClassification", PATCHES),
    "beit": ("BeitForImageClassification", PATCHES),
    "dinov2": ("Dinov2Model", PATCHES),
    "swin": (
        "SwinForImageClassification",
        {
            **{"image_size": 32, "patch_size": 4, "embed_dim": 16, "window_size": 4},
            **{"depths": [1, 1], "num_heads": [2, 4]},
        },
    ),
    "convnext": (
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 32},
    ),
    "resnet": (
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    ),
    "segformer": (
        "SegformerForSemanticSegmentation",
        {
            **{"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1]},
            **{"hidden_sizes": [8, 16], "num_attention_heads": [1, 2], "patch_sizes": [7, 3]},
            **{"strides": [4, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 16},
        },
    ),
    "clip": ("CLIPModel", _CLIP),
    "videomae": ("VideoMAEForVideoClassification", {**PATCHES, "num_frames": 4}),
    "whisper": (
        "WhisperForConditionalGeneration",
        {
            **SEQ2SEQ,
            **{"max_source_positions": 50, "max_target_positions": 20, "num_mel_bins": 8},
            **{"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3},
            "decoder_start_token_id": 4,
        },
    ),
    "wav2vec2": ("Wav2Vec2ForCTC", SOUND),
    "hubert": ("HubertModel", SOUND),
    "audio-spectrogram-transformer": (
        "ASTForAudioClassification",
        {**HEADS, "max_length": 64, "num_mel_bins": 16, "patch_size": 8},
    ),
    "patchtst": (
        "PatchTSTForPrediction",
        {
            **{"num_input_channels": 2, "context_length": 32, "patch_length": 8, "d_model": 16},
            **{"num_attention_heads": 2, "num_hidden_layers": 1, "ffn_dim": 16},
        },
    ),
}


def write_configuration(name: str, folder: Path) -> Path:
    """Write the small configuration of a model type, by transformers itself, into ``folder``."""
    from transformers import AutoConfig

    head, values = TRANSFORMERS[name]
    config = AutoConfig.for_model(name, **values)
    config.architectures = [head]
    config.save_pretrained(folder)
    return folder
