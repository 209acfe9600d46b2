"""A checkpoint to go on training from, of a model that export.py wrote: from_gguf.py MODEL.gguf CHECKPOINT

What a GGUF file does not hold begins anew: the momenta, and the counts of steps and tokens. Weights are as exact as the
file's type. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import argparse
import dataclasses
import pathlib
import struct

import numpy as np
import torch

import network
from export import ALIGNMENT, ARRAY, BOOL, F16, F32, FLOAT32, INT32, Q8_0, STRING, UINT32

LETTERS = {UINT32: "I", INT32: "i", FLOAT32: "f", BOOL: "?"}  # of struct, for what export.py writes
Q8_0_BLOCK = np.dtype([("scale", "<f2"), ("values", "i1", 32)])


class Reader:
    def __init__(self, path):
        self.data, self.at = path.read_bytes(), 0

    def take(self, letters):
        values = struct.unpack_from("<" + letters, self.data, self.at)
        self.at += struct.calcsize("<" + letters)
        return values if len(values) > 1 else values[0]

    def string(self):
        return self.take(f"{self.take('Q')}s").decode()

    def value(self, kind):
        if kind == ARRAY:
            of, count = self.take("IQ")
            return [self.value(of) for _ in range(count)]
        return self.string() if kind == STRING else self.take(LETTERS[kind])

    def array(self, kind, dimensions, at):
        count = int(np.prod(dimensions))
        if kind == Q8_0:
            blocks = np.frombuffer(self.data, Q8_0_BLOCK, count // 32, at)
            values = blocks["scale"].astype(np.float32)[:, None] * blocks["values"]
        else:
            values = np.frombuffer(self.data, {F32: "<f4", F16: "<f2"}[kind], count, at).astype(np.float32)
        return torch.from_numpy(values.reshape(dimensions[::-1]))


def read(path):
    """Metadata, and tensors by name."""
    reader = Reader(path)
    magic, _, tensor_count, key_count = reader.take("4sIQQ")
    if magic != b"GGUF":
        raise SystemExit(f"{path} is not a GGUF file")
    metadata = {reader.string(): reader.value(reader.take("I")) for _ in range(key_count)}
    infos = []
    for _ in range(tensor_count):
        name, count = reader.string(), reader.take("I")
        dimensions = [reader.take("Q") for _ in range(count)]
        infos.append((name, dimensions, *reader.take("IQ")))
    begin = -(-reader.at // ALIGNMENT) * ALIGNMENT
    return metadata, {n: reader.array(kind, dimensions, begin + at) for n, dimensions, kind, at in infos}


def shape_of(metadata):
    def of(key):
        return metadata[f"llama.{key}"]

    return network.Shape(
        vocabulary=of("vocab_size"), width=of("embedding_length"), layers=of("block_count"),
        heads=of("attention.head_count"), kv_heads=of("attention.head_count_kv"), head=of("rope.dimension_count"),
        feed_forward=of("feed_forward_length"), rotary_base=of("rope.freq_base"), context=of("context_length"),
    )  # fmt: skip


def parameters_of(tensors, layers):
    parameters = {"embedding": tensors["token_embd.weight"], "norm": tensors["output_norm.weight"]}
    for i in range(layers):
        own = {n.split(".")[2]: t for n, t in tensors.items() if n.startswith(f"blk.{i}.")}
        parameters |= {
            f"{i}.attention_norm": own["attn_norm"],
            f"{i}.qkv": torch.cat([own["attn_q"], own["attn_k"], own["attn_v"]]),
            f"{i}.output": own["attn_output"],
            f"{i}.ffn_norm": own["ffn_norm"],
            f"{i}.gate_up": torch.cat([own["ffn_gate"], own["ffn_up"]]),
            f"{i}.down": own["ffn_down"],
        }
    return parameters


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("checkpoint", type=pathlib.Path)
    options = parser.parse_args()
    if not options.checkpoint.parent.is_dir():
        parser.error(f"there is no folder {options.checkpoint.parent}")
    try:
        metadata, tensors = read(options.model)
    except OSError as error:
        raise SystemExit(error)
    except (struct.error, ValueError, KeyError) as error:
        raise SystemExit(f"{options.model} is damaged, or not of those that export.py writes ({error})")
    shape = shape_of(metadata)
    parameters = parameters_of(tensors, shape.layers)
    zeros = {n: torch.zeros_like(p) for n, p in parameters.items()}
    state = dict(
        parameters=parameters, momentum=zeros, variance=zeros, shape=dataclasses.asdict(shape), steps=0, tokens=0,
        seconds=0.0,
    )  # fmt: skip
    torch.save(state, options.checkpoint)
    print(f"{options.checkpoint}: {sum(p.numel() for p in parameters.values()):,} parameters")


if __name__ == "__main__":
    main()
