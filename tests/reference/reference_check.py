"""Checks ReferenceModel against this second implementation: reference_check.py REFERENCE_DUMP

Shares no code with the C++ one, GGUF reader included. Without a limit on the cache it computes all rows at once under
a causal mask; with one it steps through a cache that it really prunes. Exits with 77 (skipped) without NumPy.
"""

import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("NumPy is not installed")
    sys.exit(77)


def read_gguf(path):
    data = path.read_bytes()
    at = 0

    def take(fmt):
        nonlocal at
        (value,) = struct.unpack_from("<" + fmt, data, at)
        at += struct.calcsize("<" + fmt)
        return value

    def string():
        nonlocal at
        size = take("Q")
        at += size
        return data[at - size : at].decode()

    def value(kind):
        if kind == 8:
            return string()
        if kind == 9:
            element = take("I")
            return [value(element) for _ in range(take("Q"))]
        return take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    assert data[:4] == b"GGUF"
    at = 4
    assert take("I") == 3
    tensor_count, key_count = take("Q"), take("Q")
    meta = {}
    for _ in range(key_count):
        key = string()
        meta[key] = value(take("I"))
    infos = []
    for _ in range(tensor_count):
        name = string()
        dims = [take("Q") for _ in range(take("I"))]
        infos.append((name, dims, take("I"), take("Q")))
    start = -(-at // 32) * 32
    return meta, {name: tensor(data, start + offset, dims, kind) for name, dims, kind, offset in infos}


def tensor(data, at, dims, kind):
    n = int(np.prod(dims))
    if kind == 0:
        flat = np.frombuffer(data, "<f4", n, at).astype(np.float64)
    elif kind == 1:
        flat = np.frombuffer(data, "<f2", n, at).astype(np.float64)
    elif kind == 30:
        flat = (np.frombuffer(data, "<u2", n, at).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    elif kind == 8:
        blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("q", "i1", 32)]), n // 32, at)
        flat = (blocks["scale"].astype(np.float64)[:, None] * blocks["q"]).ravel()
    else:
        raise ValueError(f"tensor type {kind}")
    return flat.reshape(dims[::-1])


class Model:
    def __init__(self, path):
        meta, self.w = read_gguf(path)
        self.arch = meta["general.architecture"]
        prefix = self.arch + "."
        self.meta = {key[len(prefix) :]: value for key, value in meta.items() if key.startswith(prefix)}
        self.d = self.meta["embedding_length"]
        self.heads = self.meta["attention.head_count"]
        self.kv_heads = self.meta.get("attention.head_count_kv", self.heads)
        self.head_dim = self.meta.get("attention.key_length", self.d // self.heads)
        self.layers = self.meta["block_count"]
        self.gemma = self.arch == "gemma3"
        self.window = self.meta.get("attention.sliding_window", 0)
        self.oss = self.arch == "gpt-oss"
        mixed = {"gemma3": 6, "gpt-oss": 2}.get(self.arch, 0)  # layers with a window beside those that see everything
        self.pattern = self.meta.get("attention.sliding_window_pattern", mixed) if mixed else 0
        self.set_frequencies()

    def set_frequencies(self):
        self.rotated = self.meta.get("rope.dimension_count", self.head_dim)
        pairs = self.rotated // 2
        base = self.meta["rope.freq_base"]
        self.theta = base ** (-np.arange(pairs) / pairs)
        self.magnitude = 1.0
        scaling = self.meta.get("rope.scaling.type")
        factor = self.meta.get("rope.scaling.factor")
        if scaling == "linear":
            self.theta = self.theta / factor
        if scaling == "yarn":
            # A wavelength's turns over the original context, against 32 and 1 of them.
            original = self.meta["rope.scaling.original_context_length"]
            dimension = lambda turns: self.rotated * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base))
            first, last = dimension(32), dimension(1)
            if not self.oss:
                first, last = np.floor(first), np.ceil(last)
            low, high = max(first, 0), min(last, self.rotated - 1)
            stretched = np.clip((np.arange(pairs) - low) / max(high - low, 0.001), 0, 1)
            self.theta = self.theta * (stretched / factor + 1 - stretched)
            self.magnitude = 0.1 * np.log(factor) + 1
        if "rope_freqs.weight" in self.w:
            self.theta = self.theta / self.w["rope_freqs.weight"]
        self.local_theta = self.theta if self.oss else 10000.0 ** (-np.arange(pairs) / pairs)

    def is_local(self, layer):
        """Whether the layer has a window of its own, at original positions, beside others that see everything."""
        return self.pattern > 0 and (layer + 1) % self.pattern != 0

    def embedding(self, tokens):
        return self.w["token_embd.weight"][tokens] * (np.sqrt(self.d) if self.gemma else 1)

    def norm(self, x, name):
        if self.arch == "gptneox":
            spread = np.sqrt(x.var(axis=-1, keepdims=True) + self.meta["attention.layer_norm_epsilon"])
            return (x - x.mean(axis=-1, keepdims=True)) / spread * self.w[name + ".weight"] + self.w[name + ".bias"]
        mean = np.mean(x**2, axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.meta["attention.layer_norm_rms_epsilon"]) * self.w[name + ".weight"]

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T + self.w.get(name + ".bias", 0)

    def rope(self, x, positions, layer):
        """x: tokens, heads, head_dim; pairs as complex numbers."""
        if self.arch == "smollm3" and (layer + 1) % 4 == 0:
            return x
        local = self.is_local(layer)
        x, rest = x[..., : self.rotated], x[..., self.rotated :]
        half = self.rotated // 2
        adjacent = self.arch in ("llama", "smollm3")
        z = x[..., 0::2] + 1j * x[..., 1::2] if adjacent else x[..., :half] + 1j * x[..., half:]
        z = z * np.exp(1j * np.asarray(positions, np.float64)[:, None] * (self.local_theta if local else self.theta))[:, None, :] * self.magnitude
        turned = np.stack([z.real, z.imag], -1).reshape(x.shape) if adjacent else np.concatenate([z.real, z.imag], -1)
        return np.concatenate([turned, rest], -1)

    def qkv(self, x, block):
        n = self.norm(x, block + "attn_norm")
        split = lambda y: y.reshape(len(x), -1, self.head_dim)
        if self.arch == "gptneox":
            return [split(part) for part in np.split(self.linear(n, block + "attn_qkv"), 3, axis=-1)]
        q, k, v = (split(self.linear(n, block + name)) for name in ("attn_q", "attn_k", "attn_v"))
        return self.head_norm(q, block + "attn_q_norm"), self.head_norm(k, block + "attn_k_norm"), v

    def head_norm(self, x, name):
        return self.norm(x, name) if name + ".weight" in self.w else x

    def attend(self, q, k, v, hidden, block):
        """hidden: rows by keys, true where a row must not look."""
        group = self.heads // self.kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("thi,shi->hts", q, k) / np.sqrt(self.head_dim)
        scores[:, hidden] = -np.inf
        if self.oss:  # one more score, of nothing
            sinks = np.broadcast_to(self.w[block + "attn_sinks.weight"][:, None, None], (*scores.shape[:2], 1))
            scores = np.concatenate([scores, sinks], -1)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        p = p[..., : len(k)]
        return np.einsum("hts,shi->thi", p, v).reshape(len(q), -1)

    def experts(self, n, block):
        chosen_of = self.meta["expert_used_count"]
        scores = self.linear(n, block + "ffn_gate_inp")
        out = np.zeros_like(n)
        for row, x in enumerate(n):
            chosen = np.argsort(-scores[row], kind="stable")[:chosen_of]
            weights = np.exp(scores[row][chosen])
            part = lambda name, e, y: self.w[f"{block}ffn_{name}_exps.weight"][e] @ y + (
                self.w[f"{block}ffn_{name}_exps.bias"][e] if self.oss else 0)
            for e, weight in zip(chosen, weights / weights.sum()):
                gate, up = part("gate", e, x), part("up", e, x)
                if self.oss:
                    gate, up = np.minimum(gate, 7), 1 + np.clip(up, -7, 7)
                hidden = gate / (1 + np.exp((-1.702 if self.oss else -1) * gate)) * up
                out[row] += weight * part("down", e, hidden)
        return out

    def feed_forward(self, n, block):
        if "expert_count" in self.meta:
            return self.experts(n, block)
        up = self.linear(n, block + "ffn_up")
        if self.arch == "gptneox":
            return self.linear(up / 2 * (1 + np.vectorize(math.erf)(up / np.sqrt(2))), block + "ffn_down")
        gate = self.linear(n, block + "ffn_gate")
        if self.gemma:
            activated = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
            return self.linear(activated * up, block + "ffn_down")
        return self.linear(gate / (1 + np.exp(-gate)) * up, block + "ffn_down")

    def finish_block(self, x, attended, block):
        if self.gemma:
            x = x + self.norm(self.linear(attended, block + "attn_output"), block + "post_attention_norm")
            return x + self.norm(self.feed_forward(self.norm(x, block + "ffn_norm"), block), block + "post_ffw_norm")
        after = x + self.linear(attended, block + "attn_output")
        seen = x if self.meta.get("use_parallel_residual") else after
        norm = block + ("post_attention_norm" if self.oss else "ffn_norm")
        return after + self.feed_forward(self.norm(seen, norm), block)

    def output(self, x):
        return self.norm(x, "output_norm") @ self.w.get("output.weight", self.w["token_embd.weight"]).T

    def full(self, tokens):
        x = self.embedding(tokens)
        n = len(tokens)
        later = np.triu(np.ones((n, n), bool), 1)
        beyond = later | np.tri(n, n, -self.window, dtype=bool) if self.window else later
        for layer in range(self.layers):
            block = f"blk.{layer}."
            local = self.is_local(layer)
            hidden = later if self.pattern and not local else beyond
            q, k, v = self.qkv(x, block)
            q, k = self.rope(q, range(n), layer), self.rope(k, range(n), layer)
            x = self.finish_block(x, self.attend(q, k, v, hidden, block), block)
        return self.output(x)

    def streaming(self, tokens, sinks, window, every, passes):
        empty = np.zeros((0, self.kv_heads, self.head_dim))
        cache = [(empty, empty)] * self.layers
        rows = []
        passes = list(passes)
        while len(rows) < len(tokens):
            size = min(passes.pop(0) if passes else 1, len(tokens) - len(rows))
            for token in tokens[len(rows) : len(rows) + size]:
                x = self.embedding([token])
                for layer in range(self.layers):
                    block = f"blk.{layer}."
                    q, k, v = self.qkv(x, block)
                    keys, values = np.concatenate([cache[layer][0], k]), np.concatenate([cache[layer][1], v])
                    cache[layer] = keys, values
                    n = len(keys)
                    local = self.is_local(layer)
                    windowed = self.window and (local or not self.pattern)
                    outside = np.arange(n)[None, :] <= n - 1 - self.window if windowed else np.zeros((1, n), bool)
                    attended = self.attend(
                        self.rope(q, [n - 1], layer), self.rope(keys, range(n), layer), values, outside, block)
                    x = self.finish_block(x, attended, block)
                rows.append(self.output(x)[0])
            n = max(len(keys) for layer, (keys, _) in enumerate(cache) if not self.is_local(layer))
            if n - (sinks + window) >= every:
                keep = [*range(sinks), *range(n - window, n)]
                cache = [(k, v) if self.is_local(layer) else (k[keep], v[keep]) for layer, (k, v) in enumerate(cache)]
        return np.array(rows)


def main():
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([sys.argv[1], name], check=True)
        for case in json.loads((folder / "cases.json").read_text()):
            model = Model(folder / (case["name"] + ".gguf"))
            got = np.fromfile(folder / (case["name"] + ".logits"), "<f8").reshape(len(case["tokens"]), -1)
            full = model.full(case["tokens"])
            want = full
            if case["window"]:
                want = model.streaming(*(case[key] for key in ("tokens", "sinks", "window", "every", "passes")))
            error = np.abs(got - want).max()
            # A limit on the cache that changes nothing would make its case empty.
            empty = case["window"] and np.abs(want - full).max() < 1e-3
            ok = error < 1e-10 and not empty
            failed |= not ok
            print(f"{case['name']}: spread {want.std():.3f}, largest difference {error:.2e}", "" if ok else "FAILED")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
