"""Recorded attention made from seeds, and what is replayed on it."""

from typing import NamedTuple, Optional

import numpy as np


def softmax(logits):
    """[..., T, T] to causal float32 rows."""
    tokens = logits.shape[-1]
    hidden = np.triu(np.ones((tokens, tokens), bool), 1)
    p = np.exp(np.where(hidden, -np.inf, logits))
    return (p / p.sum(-1, keepdims=True)).astype(np.float32)


def noise(rng, layers, heads, tokens, scale):
    return scale * rng.normal(size=(layers, heads, tokens, tokens))


def distance(tokens):
    at = np.arange(tokens)
    return at[:, None] - at[None, :]


def sharp(rng):
    return softmax(noise(rng, 2, 4, 96, 3.0))


def flat(rng):
    return softmax(noise(rng, 2, 2, 120, 0.3))


def mixed(rng, layers=3, heads=4, tokens=160):
    """Sinks, heavy hitters of each layer, a pull to recent tokens; layers grow sharper."""
    x = noise(rng, layers, heads, tokens, 1.0)
    x[..., :3] += 2.5
    for layer in range(layers):
        x[layer, ..., rng.choice(tokens, tokens // 12, replace=False)] += 2.5
        x[layer] *= 0.5 + layer / layers
    # Heads see unequally far.
    reach = rng.uniform(8, 60, size=(layers, heads, 1, 1))
    return softmax(x - distance(tokens) / reach)


def long(rng):
    return mixed(rng, layers=4, heads=8, tokens=300)


def induction(rng):
    """Diagonals: each token looks at the one a period back and the one behind that."""
    x = noise(rng, 2, 4, 128, 0.7)
    for head, period in enumerate((17, 24, 31, 40)):
        back = distance(128)
        x[:, head, (back % period == 0) & (back > 0)] += 4.0
        x[:, head, (back % period == period - 1) & (back > 0)] += 2.0
    return softmax(x)


def drifting(rng):
    """The heavy hitters change half-way, so that a decaying score and a cumulative one differ."""
    x = noise(rng, 2, 2, 150, 0.8)
    for layer in range(2):
        first, second = rng.choice(60, 10, replace=False), 40 + rng.choice(60, 10, replace=False)
        x[layer, :, :80, first] += 3.5
        x[layer, :, 80:, second] += 3.5
    return softmax(x)


def peaked(rng):
    """A handful of tokens holds nearly everything: a sharp drop for Lethe in layer 0, none in layer 1."""
    x = noise(rng, 2, 2, 140, 0.5)
    x[0, ..., [0, 5, 9, 22, 37, 58, 90]] += 6.0
    return softmax(x)


def tied(rng, layers=2, heads=2, tokens=100):
    """Logits of three values: many equal weights. Two heads at most: their sum does not depend on order."""
    return softmax(rng.integers(0, 3, size=(layers, heads, tokens, tokens)).astype(float))


def tied_one_head(rng):
    return tied(rng, 1, 1, 64)


def tied_groups(rng):
    return tied(rng, 2, 4, 80)


def uniform(rng):
    return softmax(np.zeros((1, 2, 48, 48)))


def sparse(rng):
    """Exact zeros, as where a softmax underflows: a row looks at token 0, two others and, if its number is even,
    itself. All weights are multiples of 1/16."""
    rows = np.zeros((2, 2, 90, 90), np.float32)
    for layer in range(2):
        for head in range(2):
            favourites = rng.choice(60, 9, replace=False)
            for t in range(90):
                weights = rows[layer, head, t]
                weights[0] += 4 / 16
                weights[t if t % 2 == 0 else 0] += 4 / 16
                for share in (6, 2):
                    seen = [j for j in favourites if j <= t]
                    weights[rng.choice(seen) if seen else 0] += share / 16
    return rows


SEEDS = {
    sharp: 11, flat: 12, mixed: 13, long: 14, induction: 15, drifting: 16, peaked: 17, tied: 18, tied_one_head: 19,
    tied_groups: 20, uniform: 21, sparse: 22,
}


def traces():
    return {make.__name__: make(np.random.default_rng(seed)) for make, seed in SEEDS.items()}


class Case(NamedTuple):
    trace: str
    policy: str
    prefill: int = 0
    chunk: Optional[int] = None
    kv_heads: Optional[int] = None
    whole: bool = False  # Nothing is dropped; in every other case something must be.

    def options(self):
        given = [("--prefill", self.prefill or None), ("--chunk", self.chunk), ("--kv-heads", self.kv_heads)]
        return [str(part) for name, value in given if value is not None for part in (name, value)]

    def __str__(self):
        return " ".join([self.trace, self.policy, *self.options()])


# trace, policy, prefill=, chunk=, kv_heads=; whole: nothing is dropped
TABLE = """
mixed          full  whole
mixed          full  whole prefill=100 chunk=32

mixed          window:size=20
mixed          window:size=1
mixed          window:size=160  whole
mixed          window:size=159
sharp          window:size=13  prefill=50 chunk=20

mixed          streaming:sinks=4,window=28
mixed          streaming:sinks=0,window=28
mixed          streaming:sinks=2,window=18,every=16
mixed          streaming:sinks=2,window=18,every=16,realign=rotate
mixed          streaming:sinks=2,window=18,every=7  prefill=60
mixed          streaming:sinks=2,window=18,every=7  prefill=100 chunk=24
mixed          streaming:sinks=4,window=28,every=0  whole
mixed          streaming:sinks=4,window=156  whole
mixed          streaming:sinks=4,window=155
mixed          streaming:sinks=4,cap=32
mixed          streaming:cap=24,every=5
sharp          streaming:sinks=3,cap=40,slack=6,every=4
sharp          streaming:sinks=3,window=30,slack=6,every=4
sharp          streaming:sinks=3,cap=40,overlap=5,refresh=7,every=4
sharp          streaming:sinks=3,window=30,overlap=5,refresh=7,every=4
sharp          streaming:sinks=3,cap=48,slack=5,overlap=4,refresh=3,every=3,max_drop=2
sharp          streaming:sinks=3,window=30,every=8,max_drop=3
sharp          streaming:sinks=3,window=30,every=8,max_drop=1
sharp          streaming:sinks=3,window=30,max_drop=1

mixed          cascade:size=32,n=4,sinks=4
mixed          cascade:size=32,n=1,sinks=4
mixed          cascade:size=32,n=2,sinks=2
mixed          cascade:size=32,n=8,sinks=2
mixed          cascade:size=32,n=8,sinks=0
mixed          cascade:size=32,n=4,sinks=1,accept=3
mixed          cascade:size=32,n=4,sinks=1,accept=1
mixed          cascade:size=32,n=4,sinks=4,select=off
mixed          cascade:size=32,n=4,sinks=4,reduce=sum
mixed          cascade:size=32,n=4,sinks=4,reduce=max
mixed          cascade:size=32,n=4,sinks=4,reduce=median
mixed          cascade:size=32,n=4,sinks=4,gamma=0.9
mixed          cascade:size=32,n=4,sinks=4,gamma=0.5,reduce=max
mixed          cascade:size=160,n=4,sinks=4
mixed          cascade:size=8,n=8,sinks=2
mixed          cascade:size=36,n=3,sinks=2,reduce=median  prefill=80
mixed          cascade:size=36,n=3,sinks=2  prefill=100 chunk=32
long           cascade:size=64,n=4  prefill=200 chunk=48
long           cascade:size=64,n=4,accept=4,reduce=median
tied           cascade:size=24,n=4,sinks=2,gamma=0
tied           cascade:size=24,n=4,sinks=2,gamma=0,reduce=max  prefill=50 chunk=16
sparse         cascade:size=16,n=4,sinks=1
drifting       cascade:size=40,n=5,sinks=3
induction      cascade:size=48,n=4,sinks=2,reduce=max

mixed          h2o:budget=40,recent=10
mixed          h2o:budget=40,recent=10,every=0  whole
mixed          tova:budget=40,every=0  whole prefill=60
mixed          h2o:budget=40,recent=0
mixed          h2o:budget=40,recent=40
mixed          h2o:budget=40,recent=10,sinks=4
mixed          h2o:budget=40,recent=38,sinks=2
mixed          h2o:budget=160,recent=10  whole
mixed          h2o:budget=159,recent=10
mixed          h2o:budget=40,recent=10,every=9
mixed          h2o:budget=40,recent=10,every=9,sinks=3  prefill=70
mixed          h2o:budget=40,recent=10  prefill=40
mixed          h2o:budget=40,recent=10  prefill=41
mixed          h2o:budget=40,recent=10,sinks=2  prefill=120 chunk=32
mixed          h2o:budget=40,recent=10  prefill=160 chunk=50
mixed          h2o:budget=30%,recent=5
mixed          h2o:budget=7%,recent=4,sinks=2
mixed          h2o:budget=30%,recent=5,every=6  prefill=90 chunk=40
mixed          h2o:budget=100%,recent=5  whole
drifting       h2o:budget=32,recent=8,pos=original
induction      h2o:budget=48,recent=16
long           h2o:budget=64,recent=32  prefill=200
tied           h2o:budget=24,recent=4
tied_one_head  h2o:budget=12,recent=2,sinks=1
uniform        h2o:budget=10,recent=3
sparse         h2o:budget=16,recent=4,sinks=1
sparse         h2o:budget=16,recent=0,sinks=1  prefill=60 chunk=16

mixed          snapkv:budget=48,window=16  prefill=120 kv_heads=2
mixed          snapkv:budget=48,window=16  prefill=120
mixed          snapkv:budget=48,window=16  prefill=120 chunk=32 kv_heads=1
mixed          snapkv:budget=48,window=16,kernel=1  prefill=120 kv_heads=2
mixed          snapkv:budget=48,window=16,kernel=9  prefill=120 kv_heads=2
mixed          snapkv:budget=48,window=16,kernel=7,pool=max  prefill=160 kv_heads=2
mixed          snapkv:budget=16,window=16  prefill=120 kv_heads=4
mixed          snapkv:budget=120,window=16  whole prefill=120 kv_heads=2
mixed          snapkv:budget=119,window=16  prefill=120 kv_heads=2
mixed          snapkv:budget=300,window=16  whole prefill=120 kv_heads=2
mixed          snapkv:budget=48,window=16  whole kv_heads=2
mixed          snapkv:budget=30%,window=16  prefill=101 kv_heads=2
long           snapkv:budget=64,window=32  prefill=256 chunk=64 kv_heads=2
tied_groups    snapkv:budget=24,window=8,kernel=3,pool=max  prefill=60 kv_heads=2
uniform        snapkv:budget=20,window=4  prefill=40 kv_heads=1
sparse         snapkv:budget=24,window=8  prefill=70 kv_heads=1

mixed          pyramidkv:budget=48,window=16  prefill=120 kv_heads=2
mixed          pyramidkv:budget=48,window=16,beta=2  prefill=120
mixed          pyramidkv:budget=75,window=16,beta=8  prefill=120 kv_heads=2
mixed          pyramidkv:budget=90,window=16,kernel=3  prefill=120 kv_heads=2
mixed          pyramidkv:budget=48,window=16,beta=1  prefill=120 kv_heads=2
mixed          pyramidkv:budget=48,window=16,beta=0.75  prefill=120 kv_heads=2
mixed          pyramidkv:budget=120,window=16  whole prefill=120 kv_heads=2
mixed          pyramidkv:budget=25%,window=8  prefill=150 chunk=64 kv_heads=2
long           pyramidkv:budget=100,window=32  prefill=256 kv_heads=2
long           pyramidkv:budget=73,window=32,beta=2  prefill=300 chunk=100 kv_heads=4
long           pyramidkv:budget=200,window=32  prefill=256 kv_heads=8

mixed          cake:budget=48,window=16  prefill=120 kv_heads=2
mixed          cake:budget=48,window=16,gamma=0,kernel=1  prefill=120 kv_heads=2
mixed          cake:budget=48,window=16,tau1=1,tau2=1,kernel=3  prefill=120
mixed          cake:budget=100,window=16  prefill=120 kv_heads=2
mixed          cake:budget=120,window=16  whole prefill=120 kv_heads=2
long           cake:budget=80,window=32  prefill=256 chunk=64 kv_heads=2
long           cake:budget=30%,window=16,tau1=0.8,tau2=1.6  prefill=200 kv_heads=4

mixed          tova:budget=40
mixed          tova:budget=1
mixed          tova:budget=160  whole
mixed          tova:budget=159
mixed          tova:budget=40,every=11
mixed          tova:budget=40  prefill=100
mixed          tova:budget=40,every=5  prefill=100 chunk=32
mixed          tova:budget=35%
sharp          tova:budget=20%,every=4  prefill=64 chunk=20
induction      tova:budget=64
tied           tova:budget=20
tied           tova:budget=20,every=6  prefill=64 chunk=16
uniform        tova:budget=12
sparse         tova:budget=10

mixed          lethe:start=24,tau=20
mixed          lethe:start=24,tau=20,recent=0.29
mixed          lethe:start=24,tau=20,recent=0,sinks=0
mixed          lethe:start=24,tau=8,segments=4,recent=0.2
mixed          lethe:start=24,tau=8,segments=25,recent=0.5,sinks=1
mixed          lethe:start=24,tau=8,gamma=0.8
mixed          lethe:start=24,tau=8,gamma=1
mixed          lethe:start=200  whole
mixed          lethe:start=24,tau=100000  whole
mixed          lethe:start=24,tau=100000,max=48
mixed          lethe:start=24,tau=100000,max=48,recent=0.7,sinks=4
mixed          lethe:start=24,tau=8,max=40
mixed          lethe:start=24,tau=8  prefill=100
mixed          lethe:start=24,tau=8,max=33  prefill=100 chunk=32
drifting       lethe:start=20,tau=6,gamma=0.9
peaked         lethe:start=32,tau=50
peaked         lethe:start=32,tau=50,max=64
peaked         lethe:start=32,tau=50,max=64  prefill=96 chunk=24
peaked         lethe:start=32,tau=50,segments=5  prefill=64
long           lethe:start=64,tau=40,max=128  prefill=200 chunk=64
flat           lethe:start=16,tau=2
flat           lethe:start=16,max=50
flat           lethe:start=31,max=32
flat           lethe:start=35,tau=3,max=36,recent=0.8
tied_one_head  lethe:start=12,tau=3,sinks=2,gamma=0
sparse         lethe:start=16,tau=10,sinks=1
sparse         lethe:start=16,tau=400,sinks=1,recent=0.1,max=40  prefill=48 chunk=16

mixed          snapkv:budget=40,window=16+lethe:start=48,tau=8  prefill=100 kv_heads=2
mixed          snapkv:budget=40,window=16+lethe:start=48,tau=8,max=64  prefill=100 chunk=32
peaked         snapkv:budget=40,window=16+lethe:start=32,tau=20  prefill=70 kv_heads=1
mixed          snapkv:budget=48,window=16+h2o:budget=40,recent=10  prefill=100 kv_heads=2
mixed          snapkv:budget=48,window=16+h2o:budget=60,recent=10,sinks=2  prefill=100 kv_heads=4
mixed          snapkv:budget=48,window=16+streaming:sinks=4,window=40,every=4  prefill=100 kv_heads=2
mixed          snapkv:budget=48,window=16+streaming:sinks=4,window=20,every=4,max_drop=3  prefill=100 kv_heads=2
mixed          snapkv:budget=48,window=16+window:size=60  prefill=100 kv_heads=2
mixed          pyramidkv:budget=48,window=16+tova:budget=40  prefill=100 kv_heads=2
mixed          pyramidkv:budget=48,window=16+tova:budget=60,every=5  prefill=100 chunk=40 kv_heads=1
mixed          cake:budget=48,window=16+h2o:budget=50,recent=20  prefill=120 kv_heads=2
mixed          snapkv:budget=48,window=16+h2o:budget=40,recent=10  kv_heads=2
mixed          full+h2o:budget=40,recent=10  prefill=100
mixed          full+streaming:sinks=2,window=18  prefill=100
mixed          window:size=30+streaming:sinks=2,window=18,every=5  prefill=100 chunk=40 kv_heads=2
mixed          window:size=40+full  prefill=90
mixed          h2o:budget=40,recent=10+tova:budget=50  prefill=100
tied_groups    snapkv:budget=24,window=8,kernel=3,pool=max+tova:budget=20  prefill=60 kv_heads=2
long           snapkv:budget=64,window=32+lethe:start=80,tau=30  prefill=256 chunk=64 kv_heads=2
"""


def case(line):
    trace, policy, *rest = line.split()
    numbers = dict(part.split("=") for part in rest if part != "whole")
    return Case(trace, policy, whole="whole" in rest, **{key: int(value) for key, value in numbers.items()})


CASES = [case(line) for line in TABLE.splitlines() if line]

# Specs that must be refused, and a word that the refusal must contain.
REFUSED = [
    ("nosuch", "streaming"),
    ("h2o:budget=20,recent=4,nosuch=1", "sinks"),
    ("window:size=abc", ""),
    ("window:size=-3", ""),
    ("h2o:budget=16,recent=12,sinks=8", ""),
    ("h2o:budget=16,recent=17", ""),
    ("cascade:size=10,n=4", ""),
    ("cascade:reduce=min", "median"),
    ("cascade:select=perhaps", ""),
    ("snapkv:budget=20,window=4,kernel=4", ""),
    ("snapkv:budget=20,window=4,pool=sum", ""),
    ("lethe:tau=1", ""),
    ("snapkv:budget=20,window=4+nosuch", "streaming"),
]
