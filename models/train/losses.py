"""Nats per token on books of the training and on the held-out ones: losses.py DATA CHECKPOINT ... [--length T ...]

Of stretches that are spread evenly over train.u16 and over val.u16, with their mean's standard error; several checkpoints
read the same ones. A model that has learnt its books by heart is better on them than on others by more than one that
cannot have.
"""

import argparse
import pathlib

import torch

import network
import sequences
import train


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("checkpoint", type=pathlib.Path, nargs="+")
    parser.add_argument("--length", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--tokens", type=int, default=1 << 18, help="read of each")
    options = parser.parse_args()
    if any(length <= 0 or length % 64 for length in options.length) or options.tokens < 2 * max(options.length):
        parser.error("--length must be multiples of 64, --tokens two of them at least")
    sequences.check_folder(options.data)
    books = sequences.Sequences(options.data, 0)
    for path in options.checkpoint:
        state = train.load_checkpoint(path)
        model = train.create_model(network.Shape(**state["shape"]), max(options.length))
        for n, p in model.parameters.items():
            p.copy_(state["parameters"][n])
        model.update_weights()
        for length in options.length:
            for name, ids in (("held-out books", books.held_out), ("books of the training", books.train)):
                losses = torch.tensor(
                    [
                        model.run(torch.from_numpy(part), torch.from_numpy(targets)).mean().item()
                        for part, targets in sequences.stretches(ids, 1, length, options.tokens // length)
                    ]
                )
                error = losses.std() / len(losses) ** 0.5
                print(f"{path}, {length} tokens, {name}: {losses.mean():.3f} +- {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
