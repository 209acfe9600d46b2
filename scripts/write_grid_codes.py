#!/usr/bin/env python3
"""Writes src/tensor/grid_codes.h from the gguf package, which holds the grids of ggml's formats.

write_grid_codes.py > src/tensor/grid_codes.h          (pip install gguf)
"""
import importlib.metadata

import numpy
from gguf import quants

HEAD = '''// The grids of the formats IQ1, IQ2 and IQ3: constants of the formats, which ggml publishes (THIRD_PARTY.md has their
// licence). Each entry holds the codes of 8 values of 2 bits, or of 4 values of 4 bits, the first in the lowest bits.
// Written by scripts/write_grid_codes.py from the package gguf VERSION.
#pragma once

#include <array>
#include <cstdint>

namespace kvasir {

// clang-format off'''
GRIDS = (('kIq2XxsCodes', quants.IQ2_XXS), ('kIq2XsCodes', quants.IQ2_XS), ('kIq2SCodes', quants.IQ2_S),
         ('kIq3XxsCodes', quants.IQ3_XXS), ('kIq3SCodes', quants.IQ3_S), ('kIq1Codes', quants.IQ1_S))


def main():
    print(HEAD.replace('VERSION', importlib.metadata.version('gguf')))
    for name, quant in GRIDS:
        quant.init_grid()
        values = quant.grid.reshape(quant.grid_shape)
        codes = numpy.searchsorted(numpy.array(quant.grid_map), values).astype(numpy.uint32)
        entries = (codes << (16 // values.shape[1] * numpy.arange(values.shape[1], dtype=numpy.uint32))).sum(axis=1)
        print(f'inline constexpr std::array<std::uint16_t, {len(entries)}> {name} = {{')
        for first in range(0, len(entries), 14):
            print('    ' + ', '.join(f'0x{entry:04x}' for entry in entries[first:first + 14]) + ',')
        print('};')
    print('// clang-format on\n\n}  // namespace kvasir')


if __name__ == '__main__':
    main()
