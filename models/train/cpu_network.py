"""The model of network.py on a CPU with AMX, or with AVX-512 and bf16: forward and backward by cpu_kernels.cc."""

import ctypes
import pathlib
import subprocess

import torch

import network

SOURCE = pathlib.Path(__file__).with_name("cpu_kernels.cc")
BUILD = pathlib.Path(__file__).parent / "build"
FLAGS = "-O3 -std=c++20 -mprefer-vector-width=512 -fno-math-errno -fopenmp -shared -fPIC".split()
AMX = ("amx_tile", "amx_bf16")


def cpu_has(*wanted):
    info = pathlib.Path("/proc/cpuinfo")
    flags = info.read_text() if info.exists() else ""
    return all(f" {flag} " in flags for flag in wanted)


def supported(shape):
    """Whether the CPU has what the kernels need, and they are for this shape."""
    group = shape.heads // shape.kv_heads
    heads = shape.head == 64 and shape.heads == group * shape.kv_heads and group <= 4
    tiles = all(n % 32 == 0 for n in (shape.vocabulary, shape.width, shape.feed_forward))  # in pairs of 16
    return cpu_has("avx512_bf16") and heads and tiles


def load_kernels():
    target = "sapphirerapids" if cpu_has(*AMX) else "cooperlake"
    library = BUILD / f"cpu_kernels-{target}.so"
    if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
        BUILD.mkdir(exist_ok=True)
        subprocess.run(["g++", *FLAGS, f"-march={target}", str(SOURCE), "-o", str(library)], check=True)
    kernels = ctypes.CDLL(str(library))
    if kernels.cpu_init() != 0:
        raise SystemExit("the system does not permit AMX")
    return kernels


def argument(value):
    """Tensors as pointers, None as null, numbers as 64-bit integers."""
    if value is None or isinstance(value, torch.Tensor):
        return ctypes.c_void_p(None if value is None else value.data_ptr())
    return ctypes.c_int64(value)


class CpuNetwork:
    """All buffers are for `rows` tokens at most, of all sequences of a run together."""

    def __init__(self, shape, rows):
        self.shape, self.rows, self.kernels = shape, rows, load_kernels()
        shapes = shape.parameters()
        self.parameters = {n: torch.zeros(s) for n, s in shapes.items()}
        self.gradients = {n: torch.zeros(s) for n, s in shapes.items()}
        # As tiles, for x W^T and for dy W.
        self.forward_tiles = {n: torch.empty(s, dtype=torch.bfloat16) for n, s in shapes.items() if len(s) == 2}
        self.backward_tiles = {n: torch.empty_like(m) for n, m in self.forward_tiles.items()}
        self.cosine, self.sine = network.rotary_tables(shape)

        def half(width):
            return torch.zeros(rows, width, dtype=torch.bfloat16)

        layers, norms = range(shape.layers), range(2 * shape.layers + 1)
        mixed, qkv = shape.heads * shape.head, (shape.heads + 2 * shape.kv_heads) * shape.head
        self.x = [torch.zeros(rows, shape.width) for _ in norms]  # what each norm reads
        self.normed = [half(shape.width) for _ in norms]
        self.inverse = [torch.zeros(rows) for _ in norms]
        self.qkv = [half(qkv) for _ in layers]
        self.mixed = [half(mixed) for _ in layers]
        self.log_sums = [torch.zeros(rows * shape.heads) for _ in layers]
        self.gate_up = [half(2 * shape.feed_forward) for _ in layers]
        self.activation, self.d_activation = half(shape.feed_forward), half(shape.feed_forward)
        self.d_x, self.d_x_half, self.d_normed = torch.zeros(rows, shape.width), half(shape.width), half(shape.width)
        self.d_mixed, self.d_qkv = half(mixed), half(qkv)
        self.losses = torch.zeros(rows)

    def call(self, name, *arguments):
        getattr(self.kernels, name)(*map(argument, arguments))

    def update_weights(self):
        """To be called when parameters have changed."""
        for n in self.forward_tiles:
            rows, columns = self.shape.parameters()[n]
            self.call("cpu_pack_nt", self.parameters[n], rows, columns, self.forward_tiles[n])
            self.call("cpu_pack_nn", self.parameters[n], rows, columns, self.backward_tiles[n])

    def linear(self, x, name, out, residual=None):
        n, k = self.parameters[name].shape
        kernel = "cpu_linear" if residual is None else "cpu_linear_add"
        extra = () if residual is None else (residual,)
        self.call(kernel, x, k, self.forward_tiles[name], self.used, n, k, out, *extra)

    def input_gradient(self, dy, name, dx):
        """dx = dy W."""
        n, k = self.parameters[name].shape
        self.call("cpu_linear", dy, n, self.backward_tiles[name], self.used, k, n, dx)

    def weight_gradient(self, dy, name, x):
        """The gradient of W += dy^T x."""
        n, k = self.parameters[name].shape
        self.call("cpu_grad_weight", dy, n, x, k, self.used, n, k, self.gradients[name])

    def linear_backward(self, dy, name, x, dx):
        self.input_gradient(dy, name, dx)
        self.weight_gradient(dy, name, x)

    def norm(self, i, name):
        x, y = self.x[i], self.normed[i]
        self.call("cpu_norm", x, self.parameters[name], self.used, self.shape.width, y, self.inverse[i])

    def norm_backward(self, i, name):
        """Adds to d_x what came back through the norm, and leaves it in d_x_half too."""
        weight, gradient = self.parameters[name], self.gradients[name]
        self.call(
            "cpu_norm_backward", self.x[i], weight, self.inverse[i], self.d_normed, self.used, self.shape.width,
            self.d_x, self.d_x_half, gradient,
        )  # fmt: skip

    def attention_sizes(self):
        return self.count, self.length, self.shape.heads, self.shape.kv_heads, self.cosine, self.sine

    def forward(self, ids):
        shape = self.shape
        torch.index_select(self.parameters["embedding"], 0, ids.flatten(), out=self.x[0][: self.used])
        for i in range(shape.layers):
            before, middle, after = self.x[2 * i : 2 * i + 3]
            self.norm(2 * i, f"{i}.attention_norm")
            self.linear(self.normed[2 * i], f"{i}.qkv", self.qkv[i])
            self.call("cpu_attention", self.qkv[i], *self.attention_sizes(), self.mixed[i], self.log_sums[i])
            self.linear(self.mixed[i], f"{i}.output", middle, residual=before)
            self.norm(2 * i + 1, f"{i}.ffn_norm")
            self.linear(self.normed[2 * i + 1], f"{i}.gate_up", self.gate_up[i])
            self.call("cpu_swiglu", self.gate_up[i], self.used, shape.feed_forward, self.activation)
            self.linear(self.activation, f"{i}.down", after, residual=middle)
        self.norm(2 * shape.layers, "norm")

    def head(self, targets, weights):
        """Losses; with weights, the gradient of the last norm's output and of the embedding as the output matrix."""
        train = weights is not None
        self.call(
            "cpu_head", self.normed[-1], self.forward_tiles["embedding"], self.backward_tiles["embedding"], targets,
            weights, self.used, self.shape.width, self.shape.vocabulary, self.losses,
            self.d_normed if train else None, self.gradients["embedding"] if train else None,
        )  # fmt: skip

    def backward(self, ids):
        shape = self.shape
        self.d_x.zero_()
        self.norm_backward(2 * shape.layers, "norm")
        for i in reversed(range(shape.layers)):
            # Writes the gradients of gate and up over them, and the activation, which was not kept, again. The
            # order matters: the gradient of `down` needs it.
            self.input_gradient(self.d_x_half, f"{i}.down", self.d_activation)
            self.call(
                "cpu_swiglu_backward", self.gate_up[i], self.d_activation, self.used, shape.feed_forward,
                self.activation,
            )  # fmt: skip
            self.weight_gradient(self.d_x_half, f"{i}.down", self.activation)
            self.linear_backward(self.gate_up[i], f"{i}.gate_up", self.normed[2 * i + 1], self.d_normed)
            self.norm_backward(2 * i + 1, f"{i}.ffn_norm")
            self.linear_backward(self.d_x_half, f"{i}.output", self.mixed[i], self.d_mixed)
            self.call(
                "cpu_attention_backward", self.qkv[i], self.mixed[i], self.d_mixed, self.log_sums[i],
                *self.attention_sizes(), self.d_qkv,
            )  # fmt: skip
            self.linear_backward(self.d_qkv, f"{i}.qkv", self.normed[2 * i], self.d_normed)
            self.norm_backward(2 * i, f"{i}.attention_norm")
        self.gradients["embedding"].index_add_(0, ids.flatten(), self.d_x[: self.used])

    def run(self, ids, targets, weights=None):
        """Losses [count, length] in nats; with weights, adds the gradients of their weighted sum to `gradients`."""
        self.count, self.length = ids.shape
        self.used = ids.numel()
        assert self.used <= self.rows and self.length % 64 == 0 and self.length <= self.shape.context
        targets = targets.flatten().contiguous()
        weights = None if weights is None else weights.flatten().contiguous()
        self.forward(ids)
        self.head(targets, weights)
        if weights is not None:
            self.backward(ids)
        return self.losses[: self.used].view(ids.shape).clone()
