"""Losses and gradients of cpu_kernels.cc beside PyTorch's own, of the same model in f32: check_kernels.py

Exits with 1 where one differs by more than the rounding of 16-bit operands explains, with 77 on a CPU without
products of bf16.
"""

import sys

import torch

import cpu_network
import network

MOST_GRADIENT_ERROR = 0.02  # of the gradient's norm; bf16 has a relative rounding error of up to 0.004
MOST_LOSS_ERROR = 0.01  # of the mean loss


def main():
    shape = network.Shape(layers=2)
    if not cpu_network.supported(shape):
        print("no AMX, and no bf16 in AVX-512")
        return 77
    torch.manual_seed(0)
    ours = cpu_network.CpuNetwork(shape, 2048)
    theirs = network.TorchNetwork(shape, "cpu", torch.float32)
    for n, p in ours.parameters.items():
        if p.ndim == 1:
            p.normal_(1, 0.1)
        else:
            p.normal_(0, 0.5 if n == "embedding" else 0.05)
        theirs.parameters[n].copy_(p)
    failed = False
    for count, length in ((2, 512), (3, 448), (1, 2048)):
        for n, g in ours.gradients.items():  # kernels add to what is there
            theirs.gradients[n].copy_(g.normal_(0, 1e-5))
        ids = torch.randint(0, shape.vocabulary, (count, length))
        targets = torch.randint(0, shape.vocabulary, (count, length))
        weights = torch.rand(count, length) / ids.numel()
        for model in (ours, theirs):
            model.update_weights()
        got, want = ours.run(ids, targets, weights), theirs.run(ids, targets, weights)
        errors = {"losses": ((got - want).abs().max() / want.mean()).item()}
        for n, g in theirs.gradients.items():
            errors[n] = ((ours.gradients[n] - g).norm() / g.norm()).item()
        for n, error in errors.items():
            bad = not error < (MOST_LOSS_ERROR if n == "losses" else MOST_GRADIENT_ERROR)
            failed |= bad
            print(f"{count} x {length} {n:18} {error:.4f}{'  TOO LARGE' if bad else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
