#!/usr/bin/env python3
"""Writes a model of random weights of a real shape: random_weights.py HEADER FILE [--type q4_k|q8_0|mxfp4]

HEADER is a GGUF file, of which only the keys and the tensors' names and dimensions are read, so that it may hold no data. The
matrices of FILE have the type asked for, as far as their rows allow it: q4_k with q6_k where Q4_K_M has it, for outputs and in half
of the layers for values and what comes down; mxfp4 for experts with q8_0 for others, as gpt-oss is published. Their numbers are random, of the size that keeps
activations near one, and repeat every few megabytes. For speed and memory only: what such a model says means nothing.
Needs NumPy.
"""
import argparse
import re
import struct
import sys

import numpy

F32, F16, Q8_0, Q4_K, Q6_K, MXFP4 = 0, 1, 8, 12, 14, 39
BLOCK = {F32: (1, 4), F16: (1, 2), Q8_0: (32, 34), Q4_K: (256, 144), Q6_K: (256, 210), MXFP4: (32, 17)}  # elements, bytes
SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value, by type
STRING, ARRAY = 8, 9
ALIGNMENT = 32
TILE = 1 << 22  # bytes that repeat


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0]

    def string(self):
        size = self.take("Q")
        self.at += size
        return bytes(self.data[self.at - size:self.at])

    def skip(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            element, count = self.take("I"), self.take("Q")
            if element in SCALARS:
                self.at += SCALARS[element] * count
            else:
                for _ in range(count):
                    self.skip(element)
        else:
            self.at += SCALARS[kind]


def read_header(path):
    """The bytes of all keys, their number, and the tensors: name, dims."""
    reader = Reader(memoryview(numpy.memmap(path, dtype=numpy.uint8, mode="r")))
    if reader.take("I") != 0x46554747 or reader.take("I") != 3:
        sys.exit(f"random_weights.py: {path} is no GGUF file of version 3")
    tensors, keys = reader.take("Q"), reader.take("Q")
    first = reader.at
    for _ in range(keys):
        reader.string()
        reader.skip(reader.take("I"))
    metadata = bytes(reader.data[first:reader.at])
    found = []
    for _ in range(tensors):
        name = reader.string().decode()
        dims = [reader.take("Q") for _ in range(reader.take("I"))]
        reader.take("I"), reader.take("Q")
        found.append((name, dims))
    return metadata, keys, found


def has_more_bits(name, layers):
    """Whether Q4_K_M has the tensor in q6_k."""
    if name == "output.weight":
        return True
    if not re.search(r"\.(attn_v|ffn_down(_exps|_shexp)?)\.", name):
        return False
    layer = int(name.split(".")[1])
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def type_of(name, dims, wanted, layers):
    if len(dims) < 2 or not name.endswith(".weight") or "ffn_gate_inp" in name or "conv1d" in name or "shortconv.conv" in name:
        return F32
    if wanted == "mxfp4":
        choices = [MXFP4, Q8_0] if "_exps." in name else [Q8_0]
    elif wanted == "q4_k":
        choices = [Q6_K if has_more_bits(name, layers) else Q4_K, Q8_0]
    else:
        choices = [Q8_0]
    return next((kind for kind in choices if dims[0] % BLOCK[kind][0] == 0), F16)


def tile(kind, inputs, random):
    """Blocks whose numbers have about the deviation 1 / sqrt(inputs)."""
    deviation = 1 / inputs**0.5
    blocks = TILE // BLOCK[kind][1]
    out = random.integers(0, 256, (blocks, BLOCK[kind][1]), dtype=numpy.uint8)

    def half(value):
        return numpy.frombuffer(numpy.float16(value).tobytes(), dtype=numpy.uint8)

    if kind == F16:
        return random.normal(0, deviation, TILE // 2).astype(numpy.float16).tobytes()
    if kind == Q8_0:
        out[:, :2] = half(deviation / 74)
    elif kind == Q4_K:  # scales of 6 bits, 31.5 on average; quants of 4, 7.5 on average
        out[:, :2], out[:, 2:4] = half(deviation / 200), half(deviation / 200 * 7.5)
    elif kind == Q6_K:
        out[:, 192:208], out[:, 208:] = 32, half(deviation / (32 * 18.5))
    elif kind == MXFP4:
        out[:, 0] = 127 + round(numpy.log2(deviation / 3.0))
    return out.tobytes()


def floats(name, count, inputs, random):
    if "norm" in name or name.endswith("scale.weight") or name.endswith(".scale"):
        values = 1 + 0.05 * random.standard_normal(count)
    elif "ssm_a" in name:
        values = -random.uniform(0.1, 2, count)
    elif "rope_" in name:
        values = numpy.ones(count)
    else:
        values = random.standard_normal(count) / inputs**0.5
    return values.astype(numpy.float32).tobytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("header")
    parser.add_argument("file")
    parser.add_argument("--type", choices=("q4_k", "q8_0", "mxfp4"), default="q4_k")
    options = parser.parse_args()
    metadata, keys, tensors = read_header(options.header)
    random = numpy.random.default_rng(1)
    infos, places, offset = b"", [], 0
    layers = 1 + max((int(name.split(".")[1]) for name, _ in tensors if name.startswith("blk.")), default=-1)
    for name, dims in tensors:
        kind = type_of(name, dims, options.type, layers)
        elements, size = BLOCK[kind]
        count = int(numpy.prod(dims, dtype=numpy.int64))
        infos += struct.pack("<Q", len(name)) + name.encode() + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
        places.append((name, dims, kind, count // elements * size))
        offset += -(-(count // elements * size) // ALIGNMENT) * ALIGNMENT
    with open(options.file, "wb") as file:
        file.write(struct.pack("<IIQQ", 0x46554747, 3, len(tensors), keys) + metadata + infos)
        file.write(bytes(-file.tell() % ALIGNMENT))
        tiles = {}
        for name, dims, kind, size in places:
            if kind == F32:
                file.write(floats(name, size // 4, dims[0], random))
            else:
                if (kind, dims[0]) not in tiles:
                    tiles[kind, dims[0]] = tile(kind, dims[0], random)
                same = tiles[kind, dims[0]]
                for begin in range(0, size, len(same)):
                    file.write(same[:size - begin])
            file.write(bytes(-size % ALIGNMENT))
    print(f"{options.file}: {offset} bytes of {len(tensors)} tensors")


if __name__ == "__main__":
    main()
