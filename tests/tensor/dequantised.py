#!/usr/bin/env python3
"""Writes dequantised.txt: what the gguf package makes of random blocks of every quantised type.

dequantised.py > dequantised.txt          (pip install gguf)

A line for each type: its name, its GGUF number, which bytes of a block lose bit 6 (the high bytes of 16-bit scales, so
that none is infinite), the bytes of the first block, the bits of its values as 32-bit floats, and over the bits of all
values of BLOCKS blocks the sum of bits[i] * (2 i + 1) modulo 2^64. Bytes are the highest of a linear congruential
generator's 64 bits, which begins with the type's number.
"""
import importlib.metadata

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

BLOCKS = 1024
SCALES = {'Q4_0': [1], 'Q4_1': [1, 3], 'Q5_0': [1], 'Q5_1': [1, 3], 'Q8_0': [1], 'Q2_K': [81, 83], 'Q3_K': [109],
          'Q4_K': [1, 3], 'Q5_K': [1, 3], 'Q6_K': [209], 'IQ2_XXS': [1], 'IQ2_XS': [1], 'IQ3_XXS': [1], 'IQ1_S': [1],
          'IQ4_NL': [1], 'IQ3_S': [1], 'IQ2_S': [1], 'IQ4_XS': [1], 'IQ1_M': [55], 'TQ1_0': [53], 'TQ2_0': [65],
          'MXFP4': []}


def random_bytes(seed, count):
    out = bytearray(count)
    for i in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        out[i] = seed >> 56
    return numpy.frombuffer(out, dtype=numpy.uint8)


def main():
    print(f'# Written by dequantised.py from the package gguf {importlib.metadata.version("gguf")}: see there.')
    for name, scales in SCALES.items():
        quant = GGMLQuantizationType[name]
        elements, size = GGML_QUANT_SIZES[quant]
        blocks = random_bytes(quant.value, BLOCKS * size).reshape(BLOCKS, size)
        blocks[:, scales] &= 0xbf
        bits = quants.dequantize(blocks, quant).astype(numpy.float32).reshape(-1).view(numpy.uint32)
        odd = numpy.arange(1, 2 * bits.size, 2, dtype=numpy.uint64)
        total = int((bits.astype(numpy.uint64) * odd).sum(dtype=numpy.uint64))
        print(name, quant.value, ','.join(map(str, scales)) or '-', blocks[0].tobytes().hex(),
              ''.join(f'{b:08x}' for b in bits[:elements]), f'{total:016x}')


if __name__ == '__main__':
    main()
