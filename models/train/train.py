"""One stretch of training: train.py DATA CHECKPOINT [--from CHECKPOINT] --minutes M --length T ...

DATA holds what corpus.py wrote. The learning rate goes linearly from --from-rate to --to-rate (shares of --matrix-rate
and --vector-rate) over the stretch, with a warm-up in the first 100 steps of all. A checkpoint is written every five
minutes, when told to stop, and at the end; the loss on held-out books and the recall of facts planted in them are
printed with it. "loss" is that of tokens of weight 1, "answers" that of numbers asked for (sequences.py).
"""

import argparse
import dataclasses
import math
import os
import pathlib
import pickle
import signal
import time

import numpy as np
import torch

import network
import sequences

WARM_UP_STEPS = 100
REPORT_STEPS = 20
CHECKPOINT_SECONDS = 300
RECALL_DEPTHS = (0.0, 0.25, 0.5, 0.75, 0.95)


class Optimizer:
    """Muon (orthogonalised momentum, https://kellerjordan.github.io/posts/muon) for matrices, Adam for the others."""

    def __init__(self, model, matrix_rate, vector_rate):
        self.model, self.matrix_rate, self.vector_rate = model, matrix_rate, vector_rate
        self.matrices = [n for n, p in model.parameters.items() if p.ndim == 2 and n != "embedding"]
        self.others = [n for n in model.parameters if n not in self.matrices]
        self.momentum = {n: torch.zeros_like(p) for n, p in model.parameters.items()}
        self.variance = {n: torch.zeros_like(model.parameters[n]) for n in self.others}

    @staticmethod
    def orthogonalised(gradient):
        x = gradient.bfloat16()
        tall = x.size(0) > x.size(1)
        if tall:
            x = x.T.contiguous()
        x = x / (x.norm() + 1e-7)
        for _ in range(5):  # the quintic Newton-Schulz iteration of Muon
            square = x @ x.T
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * (square @ square)) @ x
        return (x.T if tall else x).float()

    def step(self, number, share):
        model = self.model
        for n in self.matrices:
            gradient, momentum, rate = model.gradients[n], self.momentum[n], self.matrix_rate * share
            momentum.mul_(0.95).add_(gradient)
            nesterov = gradient.add_(momentum, alpha=0.95)
            for p, g in zip(model.shape.split(n, model.parameters[n]), model.shape.split(n, nesterov)):
                p.mul_(1 - 0.01 * rate)
                p.add_(self.orthogonalised(g), alpha=-rate * max(1, p.size(0) / p.size(1)) ** 0.5)
            gradient.zero_()
        for n in self.others:
            gradient, momentum, variance = model.gradients[n], self.momentum[n], self.variance[n]
            momentum.mul_(0.9).add_(gradient, alpha=0.1)
            variance.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
            scale = (variance / (1 - 0.95**number)).sqrt_().add_(1e-10)
            model.parameters[n].addcdiv_(momentum / (1 - 0.9**number), scale, value=-self.vector_rate * share)
            gradient.zero_()


def initialise(model):
    for n, p in model.parameters.items():
        if p.ndim == 1:
            p.fill_(1)
        elif n == "embedding":
            p.normal_(std=0.02)
        elif n.endswith((".output", ".down")):
            p.normal_(std=0.02 / math.sqrt(2 * model.shape.layers))
        else:
            p.normal_(std=p.size(1) ** -0.5)


def held_out_loss(model, data, length, rows, batches):
    """Nats per token."""
    losses = [
        model.run(torch.from_numpy(ids), torch.from_numpy(targets)).mean().item()
        for ids, targets in sequences.stretches(data.held_out, rows // length, length, batches)
    ]
    return sum(losses) / len(losses)


def recall(model, data, length, rows, trials):
    """By depth: share of facts whose five digits are all likelier than even, and mean log-probability of a digit."""
    keep, data.random = data.random, np.random.default_rng(7)
    found = {}
    for depth in RECALL_DEPTHS:
        digits = []
        while len(digits) * (rows // length) < trials:
            ids, targets, answer = data.recall_batch(rows // length, length, depth)
            digits.append(model.run(torch.from_numpy(ids), torch.from_numpy(targets))[:, answer])
        digits = torch.cat(digits)
        found[depth] = f"{(digits < math.log(2)).all(1).float().mean():.0%} ({-digits.mean():.2f})"
    data.random = keep
    return found


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("data", type=pathlib.Path)
    add("checkpoint", type=pathlib.Path)
    add("--from", dest="start", type=pathlib.Path, help="checkpoint to go on from")
    add("--minutes", type=float, default=10)
    add("--length", type=int, nargs="+", default=[512], help="of sequences, in turn; multiples of 64")
    add("--batch", type=int, default=16384, help="tokens of a step")
    add("--rows", type=int, default=8192, help="tokens of one pass")
    add("--matrix-rate", type=float, default=0.02)
    add("--vector-rate", type=float, default=3e-3)
    add("--from-rate", type=float, default=1.0)
    add("--to-rate", type=float, default=1.0)
    add("--threads", type=int, default=os.cpu_count())
    add("--seed", type=int, default=0)
    for field in dataclasses.fields(sequences.Mixture):
        add(f"--{field.name}", type=float, default=field.default)
    for field in dataclasses.fields(network.Shape):
        add(f"--{field.name.replace('_', '-')}", type=field.type, help=f"of a new model; {field.default}")
    options = parser.parse_args()
    if min(options.batch, options.rows, *options.length) <= 0:
        parser.error("--batch, --rows and --length must be above 0")
    if options.batch % options.rows or any(options.rows % length or length % 64 for length in options.length):
        parser.error("--batch must be a multiple of --rows, that of each --length, and that of 64")
    if options.weight <= 1:
        parser.error("--weight must be above 1")
    if options.minutes <= 0:
        parser.error("--minutes must be above 0")
    shares = [f.name for f in dataclasses.fields(sequences.Mixture) if f.name != "weight"]
    if any(not 0 <= getattr(options, name) <= 1 for name in shares):
        parser.error(f"--{', --'.join(shares)} are shares, from 0 to 1")
    if not options.checkpoint.parent.is_dir():
        parser.error(f"there is no folder {options.checkpoint.parent}")
    sequences.check_folder(options.data)
    return options


def load_checkpoint(path):
    try:
        return torch.load(path, map_location="cpu")
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise SystemExit(f"{path} is no checkpoint ({error}); of a GGUF file, from_gguf.py makes one")


def create_model(shape, longest):
    """For sequences of `longest` tokens at most."""
    if longest > shape.context:
        raise SystemExit(f"--length is above the context of {shape.context} tokens")
    if torch.cuda.is_available():
        return network.TorchNetwork(shape, "cuda", torch.bfloat16)
    print("no GPU: this will be slow")
    return network.TorchNetwork(shape, "cpu", torch.float32)


def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    state = load_checkpoint(options.start) if options.start else None
    wanted = {f.name: getattr(options, f.name) for f in dataclasses.fields(network.Shape)}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if state and wanted:
        raise SystemExit(f"{options.start} has its own {', '.join(wanted)}")
    shape = network.Shape(**(state["shape"] if state else wanted))
    mixture = sequences.Mixture(**{f.name: getattr(options, f.name) for f in dataclasses.fields(sequences.Mixture)})
    model = create_model(shape, max(options.length))
    optimizer = Optimizer(model, options.matrix_rate, options.vector_rate)
    steps, tokens, seconds = 0, 0, 0.0
    if state:
        for own, saved in (
            (model.parameters, state["parameters"]),
            (optimizer.momentum, state["momentum"]),
            (optimizer.variance, state["variance"]),
        ):
            for n in own:
                own[n].copy_(saved[n])
        steps, tokens, seconds = state["steps"], state["tokens"], state["seconds"]
    else:
        initialise(model)
    data = sequences.Sequences(options.data, [options.seed, steps])
    print(f"{sum(p.numel() for p in model.parameters.values()):,} parameters", flush=True)

    begin = last_saved = time.monotonic()
    first_step, rows, smoothed, answers = steps, options.rows, None, []
    longest = max(options.length)

    def save():
        state = dict(
            parameters=model.parameters, momentum=optimizer.momentum, variance=optimizer.variance,
            shape=dataclasses.asdict(shape), steps=steps, tokens=tokens, seconds=seconds + time.monotonic() - begin,
        )  # fmt: skip
        part = options.checkpoint.with_suffix(".part")
        torch.save(state, part)
        part.replace(options.checkpoint)

    stopped = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.append(True))
    while not stopped and (done := (time.monotonic() - begin) / (60 * options.minutes)) < 1:
        share = options.from_rate + (options.to_rate - options.from_rate) * done
        length = options.length[steps % len(options.length)]
        model.update_weights()
        passes = options.batch // rows
        text_loss = 0.0
        for _ in range(passes):
            ids, targets, weights = map(torch.from_numpy, data.batch(rows // length, length, mixture))
            losses = model.run(ids, targets, weights / (weights.sum() * passes)).cpu()
            text_loss += losses[weights == 1].mean().item() / passes
            answers += losses[weights == mixture.weight].tolist()
        steps, tokens = steps + 1, tokens + options.batch
        optimizer.step(steps, share * min(1, steps / WARM_UP_STEPS))
        smoothed = text_loss if smoothed is None else 0.97 * smoothed + 0.03 * text_loss
        now = time.monotonic()
        if steps % REPORT_STEPS == 0:
            speed = (steps - first_step) * options.batch / (now - begin)
            print(
                f"step {steps}, {(seconds + now - begin) / 60:.1f} min, {tokens / 1e6:.2f}M tokens: loss {smoothed:.3f}, "
                f"answers {np.mean(answers) if answers else math.nan:.3f}, rate {share:.3f}, {speed:.0f} tokens/s",
                flush=True,
            )
            answers = []
        if now - last_saved > CHECKPOINT_SECONDS:
            model.update_weights()
            short = min(longest, 1024)
            print(f"held-out loss at {short}: {held_out_loss(model, data, short, rows, 4):.4f}", flush=True)
            print(f"recall at {longest}: {recall(model, data, longest, rows, 16)}", flush=True)
            save()
            last_saved = time.monotonic()
    model.update_weights()
    save()
    for length in sorted({512, 2048, longest}) if not stopped else ():
        if length <= min(rows, shape.context):
            print(f"held-out loss at {length}: {held_out_loss(model, data, length, rows, 8):.4f}", flush=True)
            print(f"recall at {length}: {recall(model, data, length, rows, 32)}", flush=True)


if __name__ == "__main__":
    main()
