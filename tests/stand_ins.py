"""Small random networks in the formats of the real ones: a CLIP of transformers, and clean-fid's Inception in TorchScript."""

import json
from pathlib import Path

import torch
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizerFast


class _Layers(torch.nn.Module):
    """Pooled features (B, 8, 1, 1) of pictures (B, 3, 299, 299)."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 16, stride=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.convolution(x)).mean((2, 3), keepdim=True)


class _Inception(torch.nn.Module):
    """The outer module, whose `layers` take pictures that are resized and scaled already."""

    def __init__(self):
        super().__init__()
        self.layers = _Layers()

    def forward(self, x: torch.Tensor, return_features: bool = False) -> torch.Tensor:
        return self.layers((x - 128) / 128)


def write_inception(path: Path) -> Path:
    torch.manual_seed(0)
    torch.jit.script(_Inception().eval()).save(str(path))
    return path


def write_clip(folder: Path) -> Path:
    """Config, weights, tokenizer and image processor, as `save_pretrained` writes them."""
    folder.mkdir(parents=True)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16)
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = size | {"vocab_size": len(words), "max_position_embeddings": 16, "bos_token_id": 52, "eos_token_id": 53}
    torch.manual_seed(0)
    config = CLIPConfig(text_config=text, vision_config=size | {"image_size": 16, "patch_size": 8}, projection_dim=8)
    CLIPModel(config).save_pretrained(folder)
    images = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    CLIPProcessor(images, tokenizer).save_pretrained(folder)
    return folder
