"""The zoo's transformers, and ConvNeXt, as independently written PyTorch modules."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Product(nn.Module):
    """A linear layer whose weight is (inner, outer), as ONNX has it."""

    def __init__(self, inner: int, outer: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inner, outer))
        self.bias = nn.Parameter(torch.empty(outer))

    def forward(self, x):
        return x @ self.weight + self.bias


class Embedded(nn.Module):
    """A learned array, ``weight``."""

    def __init__(self, *shape: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape))


class Attention(nn.Module):
    """Twelve heads; queries, keys and values by one layer or by three."""

    def __init__(self, width: int = 768, *, joint: bool = True):
        super().__init__()
        layers = [Product(width, 3 * width)] if joint else [Product(width, width) for _ in "qkv"]
        self.inner, self.outer = nn.ModuleList(layers), Product(width, width)

    def forward(self, x, **options):
        parts = torch.cat([layer(x) for layer in self.inner], dim=2).chunk(3, dim=2)
        heads = [part.unflatten(2, (12, -1)).transpose(1, 2) for part in parts]
        mixed = scaled_dot_product_attention(*heads, **options)
        return self.outer(mixed.transpose(1, 2).flatten(2))


def mlp(width: int, approximate: str = "none") -> nn.Module:
    gelu = nn.GELU(approximate=approximate)
    return nn.Sequential(Product(width, 4 * width), gelu, Product(4 * width, width))


class NormedFirst(nn.Module):
    """A layer of ViT and GPT-2."""

    def __init__(self, eps: float, approximate: str = "none"):
        super().__init__()
        self.first, self.attention = nn.LayerNorm(768, eps=eps), Attention()
        self.second, self.mlp = nn.LayerNorm(768, eps=eps), mlp(768, approximate)

    def forward(self, x, **options):
        x = x + self.attention(self.first(x), **options)
        return x + self.mlp(self.second(x))


class NormedLast(nn.Module):
    """A layer of BERT."""

    def __init__(self):
        super().__init__()
        self.attention, self.first = Attention(joint=False), nn.LayerNorm(768, eps=1e-12)
        self.mlp, self.second = mlp(768), nn.LayerNorm(768, eps=1e-12)

    def forward(self, x, mask):
        x = self.first(x + self.attention(x, attn_mask=mask))
        return self.second(x + self.mlp(x))


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, stride=16)
        self.token, self.positions = Embedded(1, 1, 768), Embedded(1, 14 * 14 + 1, 768)
        self.layers = nn.Sequential(*(NormedFirst(1e-6) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(768, eps=1e-6), nn.Linear(768, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.weight.expand(len(x), -1, -1), x], dim=1)
        return self.head(self.norm(self.layers(x + self.positions.weight))[:, 0])


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.types = nn.Embedding(30522, 768), nn.Embedding(2, 768)
        self.positions, self.norm = nn.Embedding(512, 768), nn.LayerNorm(768, eps=1e-12)
        self.layers = nn.ModuleList(NormedLast() for _ in range(12))
        self.pooler = nn.Linear(768, 768)

    def forward(self, ids, mask, types):
        x = self.words(ids) + self.types(types) + self.positions(torch.arange(ids.shape[1]))
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, mask[:, None, None].bool())
        return x, self.pooler(x[:, 0]).tanh()


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
        self.layers = nn.ModuleList(NormedFirst(1e-5, "tanh") for _ in range(12))
        self.norm = nn.LayerNorm(768, eps=1e-5)

    def forward(self, ids):
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, is_causal=True)
        return self.norm(x) @ self.words.weight.T


class ChannelNorm(nn.LayerNorm):
    """Layer normalization of (N, C, H, W) over C."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.mlp = nn.LayerNorm(width, eps=1e-6), mlp(width)
        self.scale = Embedded(width, 1, 1)

    def forward(self, x):
        y = self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + self.scale.weight * y.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    def __init__(self):
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, stride=4), ChannelNorm(96, eps=1e-6)]
        for stage, count in enumerate((3, 3, 9, 3)):
            width = 96 << stage
            if stage:
                layers += [ChannelNorm(width // 2, eps=1e-6), nn.Conv2d(width // 2, width, 2, 2)]
            layers += [ConvNextBlock(width) for _ in range(count)]
        self.layers = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(768, eps=1e-6), nn.Linear(768, 1000)

    def forward(self, x) -> Tensor:
        return self.head(self.norm(self.layers(x).mean(dim=(2, 3))))


TORCH_TRANSFORMERS: dict[str, Callable[[], nn.Module]] = {
    "bert-base": Bert,
    "convnext-tiny": ConvNext,
    "gpt2": Gpt2,
    "vit-b-16": VisionTransformer,
}
