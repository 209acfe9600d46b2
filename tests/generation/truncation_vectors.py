"""Writes truncation_vectors.h: what other implementations keep of random logits.

truncation_vectors.py LIBLLAMA > truncation_vectors.h

Locally typical sampling is that of transformers (5.2.0, TypicalLogitsWarper, in double); XTC, top-n-sigma and the dynamic
temperature are those of llama.cpp (the library of llama-cpp-python 0.3.36), called without a model.
"""

import ctypes
import random
import sys

import torch
from transformers import TypicalLogitsWarper


class Token(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class Tokens(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(Token)), ("size", ctypes.c_size_t), ("selected", ctypes.c_int64),
                ("sorted", ctypes.c_bool)]


llama = ctypes.CDLL(sys.argv[1])
for name in ("xtc", "top_n_sigma", "temp_ext"):
    getattr(llama, f"llama_sampler_init_{name}").restype = ctypes.c_void_p
llama.llama_sampler_apply.argtypes = [ctypes.c_void_p, ctypes.POINTER(Tokens)]


def applied(sampler, logits):
    data = (Token * len(logits))(*(Token(i, logit, 0) for i, logit in enumerate(logits)))
    tokens = Tokens(data, len(logits), -1, False)
    llama.llama_sampler_apply(sampler, ctypes.byref(tokens))
    return [tokens.data[i] for i in range(tokens.size)]


def xtc(logits, threshold):
    """With probability 1; a fresh sampler for each, as it has a generator of its own."""
    sampler = llama.llama_sampler_init_xtc(ctypes.c_float(1), ctypes.c_float(threshold), ctypes.c_size_t(0), ctypes.c_uint32(1))
    return sorted(token.id for token in applied(sampler, logits))


def top_n_sigma(logits, n):
    kept = applied(llama.llama_sampler_init_top_n_sigma(ctypes.c_float(n)), logits)
    return sorted(token.id for token in kept if token.logit != float("-inf"))


def dynamic(logits, temperature, spread, exponent):
    """The temperature, from the logits before and after."""
    sampler = llama.llama_sampler_init_temp_ext(*map(ctypes.c_float, (temperature, spread, exponent)))
    after = {token.id: token.logit for token in applied(sampler, logits)}
    first, last = max(range(len(logits)), key=logits.__getitem__), min(range(len(logits)), key=logits.__getitem__)
    return (logits[first] - logits[last]) / (after[first] - after[last])


def typical(logits, mass):
    scores = TypicalLogitsWarper(mass=mass)(None, torch.tensor([logits], dtype=torch.float64))[0]
    return [i for i, score in enumerate(scores.tolist()) if score != float("-inf")]


def listed(values):
    return "{" + ", ".join(str(value) for value in values) + "}"


print("""// What other implementations keep of random logits: see truncation_vectors.py, which wrote this file.
#pragma once

#include <vector>

namespace kvasir::test {

struct TruncationVector {
  std::vector<float> logits;
  float typical_p;
  std::vector<int> typical;  // tokens kept
  float xtc_threshold;
  std::vector<int> xtc;
  float top_n_sigma;
  std::vector<int> sigma;
  float temperature;
  float range;
  float exponent;
  double dynamic;  // temperature
};

inline const std::vector<TruncationVector> kTruncationVectors = {""")
draws = random.Random(20261128)
for case in range(16):
    spread = draws.choice([0.3, 1, 2, 4])
    logits = [round(draws.gauss(0, spread), 3) for _ in range(draws.choice([2, 5, 24, 40]))]
    mass, threshold, sigma = (round(draws.uniform(low, high), 3) for low, high in ((0.05, 0.99), (0.02, 0.5), (0.2, 3)))
    temperature, reach, exponent = (round(draws.uniform(low, high), 3) for low, high in ((0.3, 2), (0.1, 1.5), (0.3, 3)))
    print("    {" + listed(f"{logit}F" for logit in logits) + ",")
    print(f"     {mass}F, {listed(typical(logits, mass))},")
    print(f"     {threshold}F, {listed(xtc(logits, threshold))},")
    print(f"     {sigma}F, {listed(top_n_sigma(logits, sigma))},")
    print(f"     {temperature}F, {reach}F, {exponent}F, {dynamic(logits, temperature, reach, exponent)!r}" + "},")
print("""};

}  // namespace kvasir::test""")
