"""The model (Llama: RMSNorm, interleaved rotary pairs, grouped-query attention, SwiGLU, tied embeddings), in PyTorch."""

import dataclasses
import math

import torch
import torch.nn.functional as F

EPSILON = 1e-5


@dataclasses.dataclass(frozen=True)
class Shape:
    vocabulary: int = 4096
    width: int = 384
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    head: int = 64
    feed_forward: int = 1024
    rotary_base: float = 500000.0
    context: int = 8192

    def parameters(self):
        """Names and shapes [out, in]; qkv stacks queries, keys and values, gate_up the two of the feed-forward."""
        shapes = {"embedding": (self.vocabulary, self.width), "norm": (self.width,)}
        for i in range(self.layers):
            shapes |= {
                f"{i}.attention_norm": (self.width,),
                f"{i}.qkv": ((self.heads + 2 * self.kv_heads) * self.head, self.width),
                f"{i}.output": (self.width, self.heads * self.head),
                f"{i}.ffn_norm": (self.width,),
                f"{i}.gate_up": (2 * self.feed_forward, self.width),
                f"{i}.down": (self.width, self.feed_forward),
            }
        return shapes

    def split(self, name, matrix):
        """The matrices that are stacked in one."""
        if name.endswith(".qkv"):
            return matrix.split([self.heads * self.head, self.kv_heads * self.head, self.kv_heads * self.head])
        if name.endswith(".gate_up"):
            return matrix.split(self.feed_forward)
        return (matrix,)


def rotary_tables(shape):
    """Cosines and sines, each [context, head / 2]."""
    frequency = shape.rotary_base ** (-torch.arange(0, shape.head, 2).double() / shape.head)
    angle = torch.outer(torch.arange(shape.context).double(), frequency)
    return angle.cos().float().contiguous(), angle.sin().float().contiguous()


class TorchNetwork:
    def __init__(self, shape, device, dtype):
        self.shape, self.device, self.dtype = shape, device, dtype
        self.parameters = {n: torch.zeros(s, device=device) for n, s in shape.parameters().items()}
        self.gradients = {n: torch.zeros(s, device=device) for n, s in shape.parameters().items()}
        self.cosine, self.sine = (table.to(device) for table in rotary_tables(shape))

    def update_weights(self):
        """To be called when parameters have changed."""
        for p in self.parameters.values():
            p.grad = None

    def rotate(self, x):
        length = x.shape[-2]
        c, s = self.cosine[:length], self.sine[:length]
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        return torch.stack([even * c - odd * s, even * s + odd * c], -1).flatten(-2).to(x.dtype)

    def norm(self, x, name):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)
        return (x * scale * self.parameters[name]).to(self.dtype)

    def linear(self, x, name):
        return F.linear(x, self.parameters[name].to(self.dtype))

    def attention(self, q, k, v):
        group = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if hasattr(F, "scaled_dot_product_attention"):  # PyTorch 2; Debian 12 has 1.13
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        length = q.shape[-2]
        mask = torch.full((length, length), -math.inf, device=q.device, dtype=q.dtype).triu(1)
        return (q @ k.transpose(-1, -2) * self.shape.head**-0.5 + mask).softmax(-1) @ v

    def logits(self, ids):
        shape = self.shape
        count, length = ids.shape
        x = self.parameters["embedding"][ids]
        for i in range(shape.layers):
            qkv = self.linear(self.norm(x, f"{i}.attention_norm"), f"{i}.qkv")
            heads = qkv.view(count, length, -1, shape.head).transpose(1, 2)
            q, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
            mixed = self.attention(self.rotate(q), self.rotate(k), v).transpose(1, 2).reshape(count, length, -1)
            x = x + self.linear(mixed, f"{i}.output").float()
            gate, up = self.linear(self.norm(x, f"{i}.ffn_norm"), f"{i}.gate_up").chunk(2, -1)
            x = x + self.linear(F.silu(gate) * up, f"{i}.down").float()
        return self.linear(self.norm(x, "norm"), "embedding").float()

    def run(self, ids, targets, weights=None):
        """Losses [count, length] in nats; with weights, adds the gradients of their weighted sum to `gradients`."""
        train = weights is not None
        ids, targets = ids.to(self.device), targets.to(self.device)
        for p in self.parameters.values():
            p.requires_grad_(train)
        with torch.set_grad_enabled(train):
            logits = self.logits(ids)
            losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(ids.shape)
        if train:
            (losses * weights.to(self.device)).sum().backward()
            for name, p in self.parameters.items():
                self.gradients[name].add_(p.grad)
                p.grad = None
                p.requires_grad_(False)
        return losses.detach()
