#!/usr/bin/env python3
"""Writes what kvpress scores and keeps of a short text, and the keys, values, queries and attention that it decides by.

write_fixtures.py MODEL.gguf TEXT FOLDER

MODEL.gguf: SmolLM2-135M-Instruct, dequantised to float32. TEXT: examples/the-lamplighter.txt. FOLDER: this one. Each press
acts through its hook in a forward pass of the model; what it kept is read off the cache by the bytes of the keys, or off the
mask that it leaves. Needs torch, transformers, kvpress and gguf, which the tests do not. Written with kvpress 0.5.5,
transformers 5.2.0 and torch 2.8.0 on one thread. README.md describes the files.
"""
import argparse
import json
import pathlib
import tempfile

import kvpress
import numpy
import torch
import transformers
from kvpress.utils import get_prerope_key_states, get_prerope_query_states
from tokenizers import pre_tokenizers
from transformers.models.llama.modeling_llama import rotate_half

TOKENS = 395  # leaves a rest in chunks of 10, 16, 20, 32 and 128
LAYERS = [2, 14, 27]
RATIOS = [0.5, 0.75]  # shares that are removed
QUERIES = 64  # the last ones are stored
ROWS = 32  # of attention, the last ones
SINKS = 4  # first queries that the statistics leave out
SKETCHED = 14  # the layer whose keys before RoPE are stored


class ManifoldPress(kvpress.ScorerPress):
    """kvpress has none: the distance of a key from the mean of all, as arXiv 2602.08343 defines it."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return torch.linalg.vector_norm(keys - keys.mean(dim=2, keepdim=True), dim=-1)


class Sketched(kvpress.LeverageScorePress):
    """The same sketch at each call, which is kept."""

    sketches = {}

    def score(self, module, *rest):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            state = torch.random.get_rng_state()
            result = super().score(module, *rest)
            torch.random.set_rng_state(state)
            shape = (1, module.config.num_key_value_heads, module.head_dim, self.sketch_dimension)
            self.sketches[module.layer_idx] = torch.randn(shape) / self.sketch_dimension**0.5
        return result


def snap(ratio, window=32, kernel=5):
    return kvpress.SnapKVPress(ratio, window_size=window, kernel_size=kernel)


def expected(ratio, **options):
    return kvpress.ExpectedAttentionPress(ratio, **options)


PRESSES = {
    'knorm': kvpress.KnormPress,
    'keydiff': kvpress.KeyDiffPress,
    'manifold': ManifoldPress,
    'lagkv': kvpress.LagKVPress,
    'lagkv lag=32': lambda ratio: kvpress.LagKVPress(ratio, lag_size=32),
    'lagkv cross': lambda ratio: kvpress.LagKVPress(ratio, cross_scoring=True),
    'lagkv lag=32 cross': lambda ratio: kvpress.LagKVPress(ratio, lag_size=32, cross_scoring=True),
    'expected': expected,
    'expected epsilon=0.01': lambda ratio: expected(ratio, epsilon=0.01),
    'expected vnorm=off': lambda ratio: expected(ratio, use_vnorm=False),
    'expected covariance=off': lambda ratio: expected(ratio, use_covariance=False),
    'snapkv': snap,
    'snapkv kernel=7': lambda ratio: snap(ratio, kernel=7),
    'snapkv window=16 kernel=15': lambda ratio: snap(ratio, 16, 15),
    'tova': kvpress.TOVAPress,
    'pyramidkv': lambda ratio: kvpress.PyramidKVPress(ratio, window_size=32),
    'streaming': kvpress.StreamingLLMPress,
    'h2o': kvpress.ObservedAttentionPress,
    'cur': kvpress.CURPress,
    'leverage': Sketched,
    'critical snapkv': lambda ratio: kvpress.CriticalKVPress(snap(ratio)),
    'critical expected': lambda ratio: kvpress.CriticalKVPress(expected(ratio, use_vnorm=False)),
    'ada snapkv': lambda ratio: kvpress.AdaKVPress(snap(ratio)),
    'ada expected': lambda ratio: kvpress.AdaKVPress(expected(ratio, epsilon=0.01)),
    'ada keydiff': lambda ratio: kvpress.AdaKVPress(kvpress.KeyDiffPress(ratio)),
    'ada manifold': lambda ratio: kvpress.AdaKVPress(ManifoldPress(ratio)),
    'ada lagkv lag=32 cross': lambda ratio: kvpress.AdaKVPress(kvpress.LagKVPress(ratio, lag_size=32, cross_scoring=True)),
    'ada critical snapkv': lambda ratio: kvpress.CriticalAdaKVPress(snap(ratio)),
    'ada critical expected': lambda ratio: kvpress.CriticalAdaKVPress(expected(ratio, use_vnorm=False)),
    'chunk snapkv': lambda ratio: kvpress.ChunkKVPress(snap(ratio)),
    'chunk snapkv length=10': lambda ratio: kvpress.ChunkKVPress(snap(ratio), chunk_length=10),
    'chunk keydiff': lambda ratio: kvpress.ChunkKVPress(kvpress.KeyDiffPress(ratio)),
    'entropy chunk snapkv': lambda ratio: kvpress.EntropyGatedChunkKVPress(snap(ratio)),
    'block keydiff': lambda ratio: kvpress.BlockPress(kvpress.KeyDiffPress(ratio)),
    'block keydiff size=16': lambda ratio: kvpress.BlockPress(kvpress.KeyDiffPress(ratio), block_size=16),
    'block manifold': lambda ratio: kvpress.BlockPress(ManifoldPress(ratio)),
    'block knorm': lambda ratio: kvpress.BlockPress(kvpress.KnormPress(ratio)),
    'kvzip': kvpress.KVzipPress,
    'kvzip layerwise': lambda ratio: kvpress.KVzipPress(ratio, layerwise=True),
    'kvzip plus': lambda ratio: kvpress.KVzipPress(ratio, kvzip_plus_normalization=True),
}
# Whose scores are those of another press, or that have none.
SCORELESS = ('ada ', 'chunk ', 'entropy ', 'block ', 'kvzip')
ZIPPED = ('kvzip', 'kvzip plus')


def load(path, tokenizer_folder):
    """The model, and its tokenizer as tests/text/smollm2/make_ids.py mends it, stored where kvzip looks for it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.backend_tokenizer.model.unk_token = None
    # A class that adds nothing of its own. Without a chat template kvzip takes all of the text as its context.
    plain = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    plain.save_pretrained(tokenizer_folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    model.config.name_or_path = str(tokenizer_folder)
    return model, plain


def attention_of(model):
    return [layer.self_attn for layer in model.model.layers]


def forward(model, ids):
    cache = transformers.DynamicCache()
    with torch.no_grad():
        model(ids, past_key_values=cache)
    return cache


def record(model, ids):
    """What each layer's attention saw, without any press: {layer: (hidden states, position embeddings, keys, values)}."""
    seen = {}

    def hook(module, inputs, kwargs, output):
        seen[module.layer_idx] = [kwargs['hidden_states'], kwargs['position_embeddings']]

    hooks = [module.register_forward_hook(hook, with_kwargs=True) for module in attention_of(model)]
    cache = forward(model, ids)
    for one in hooks:
        one.remove()
    for layer, of in seen.items():
        of += [cache.layers[layer].keys, cache.layers[layer].values]
    return seen


def record_attention(model, ids):
    """The attention of LAYERS, and what record() tells of the pass that gives it: other kernels, other last bits."""
    model.set_attn_implementation('eager')
    weights = {}

    def hook(module, inputs, kwargs, output):
        weights[module.layer_idx] = output[1][0]

    hooks = [attention_of(model)[layer].register_forward_hook(hook, with_kwargs=True) for layer in LAYERS]
    seen = record(model, ids)
    for one in hooks:
        one.remove()
    model.set_attn_implementation('sdpa')
    return weights, seen


def apply(model, ids, press, seen, eager=False):
    """One pass under a press: the scores it computed, and the tokens it kept, per layer and KV head."""
    scores = {}
    if hasattr(press, 'score'):
        inner = press.score

        def score(module, *rest):
            result = inner(module, *rest)
            scores[module.layer_idx] = result[0].clone()
            return result

        press.score = score
    zipped = {}
    if isinstance(press, kvpress.KVzipPress):
        compress_post = press.compress_post

        def keep_scores(of):
            zipped['scores'] = press.score_val[:, 0].clone()  # the sinks still have what the replay gave them
            compress_post(of)

        press.compress_post = keep_scores
    for module in attention_of(model):
        module.masked_key_indices = None
    model.set_attn_implementation('eager' if eager else 'sdpa')
    cache = transformers.DynamicCache()
    with torch.no_grad(), press(model):
        model(ids, past_key_values=cache)
    kept = {}
    for layer, module in enumerate(attention_of(model)):
        all_keys = seen[layer][2][0]
        masked = module.masked_key_indices
        if masked is not None:
            assert cache.layers[layer].keys.shape[2] == all_keys.shape[1]
            open_ = torch.ones(all_keys.shape[:2], dtype=torch.bool)
            open_[masked[1], masked[2]] = False
            kept[layer] = [row.nonzero().flatten().tolist() for row in open_]
            module.masked_key_indices = None
            continue
        kept[layer] = []
        for head, keys in enumerate(cache.layers[layer].keys[0]):
            places = {row.tobytes(): at for at, row in enumerate(all_keys[head].numpy())}
            assert len(places) == all_keys.shape[1], 'two keys are the same'
            kept[layer].append(sorted(places[row.tobytes()] for row in keys.contiguous().numpy()))
    model.set_attn_implementation('sdpa')
    return scores, kept, zipped.get('scores')


def margins(scores, kept):
    """Per KV head, by how much the lowest kept score is above the highest dropped one, relative to the larger; 0: a tie."""
    result = []
    for row, keep in zip(scores, kept):
        mask = torch.zeros(len(row), dtype=torch.bool)
        mask[keep] = True
        low, high = row[mask].min().item(), row[~mask].max().item()
        result.append((low - high) / max(abs(low), abs(high), 1e-30))
    return min(result)


def query_states(module, hidden, embeddings):
    queries = get_prerope_query_states(module, hidden[:, -QUERIES:])
    cos, sin = (table[:, -QUERIES:].unsqueeze(1) for table in embeddings)
    return (queries * cos + rotate_half(queries) * sin)[0]


def projected(module, values):
    """L1 and L2 norms of each value behind the output projection, per query head."""
    heads, group = module.config.num_attention_heads, module.num_key_value_groups
    weight = module.o_proj.weight.view(-1, heads, module.head_dim)
    outputs = [values[0, head // group] @ weight[:, head].T for head in range(heads)]
    return [torch.stack([torch.linalg.vector_norm(output, norm, dim=-1) for output in outputs]) for norm in (1, 2)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ('model', 'text', 'folder'):
        parser.add_argument(name, type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write(options, *load(options.model, folder))


def write(options, model, tokenizer):
    ids = tokenizer.encode(options.text.read_text(), add_special_tokens=False, split_special_tokens=True)[:TOKENS]
    batch = torch.tensor([ids])
    seen = record(model, batch)
    weights, seen_eagerly = record_attention(model, batch)
    of = [attention_of(model)[layer] for layer in LAYERS]

    def store(name, arrays):
        array = numpy.ascontiguousarray(torch.stack(arrays).detach().numpy(), dtype=numpy.float32)
        numpy.save(options.folder / f'{name}.npy', array)
        print(f'{name}.npy', array.shape, f'{array.nbytes / 1024:.0f} KiB')

    store('keys', [seen[layer][2][0] for layer in LAYERS])
    store('values', [seen[layer][3][0] for layer in LAYERS])
    store('queries', [query_states(module, *seen[module.layer_idx][:2]) for module in of])
    before = [get_prerope_query_states(module, seen[module.layer_idx][0][:, SINKS:])[0] for module in of]
    means = [queries.mean(dim=1, keepdim=True) for queries in before]
    store('query_mean', [mean[:, 0] for mean in means])
    store('query_covariance', [torch.einsum('hni,hnj->hij', queries - mean, queries - mean) / queries.shape[1]
                               for queries, mean in zip(before, means)])
    store('attention', [weights[layer][:, -ROWS:] for layer in LAYERS])
    store('attention_sums', [weights[layer].sum(dim=1) for layer in LAYERS])
    store('projected_values', [torch.stack(projected(module, seen[module.layer_idx][3])) for module in of])
    store('keys_before_rope', [get_prerope_key_states(attention_of(model)[SKETCHED], seen[SKETCHED][0])[0]])

    entries, scores = [], []
    zip_scores = []
    for name, make in PRESSES.items():
        for ratio in RATIOS:
            eager = name == 'h2o'
            of_layers, kept, zipped = apply(model, batch, make(ratio), seen_eagerly if eager else seen, eager)
            entry = {'press': name, 'ratio': ratio}
            if not name.startswith(SCORELESS):
                chosen = [of_layers[layer] for layer in LAYERS]
                entry['margin'] = min(margins(rows, kept[layer]) for rows, layer in zip(chosen, LAYERS))
                stacked = torch.stack(chosen)
                entry['scores'] = next((i for i, other in enumerate(scores) if torch.equal(other, stacked)), len(scores))
                if entry['scores'] == len(scores):
                    scores.append(stacked)
            if name in ZIPPED and ratio == RATIOS[0]:
                zip_scores.append(zipped)
            entry['counts'] = [[len(lane) for lane in kept[layer]] for layer in range(len(seen))]
            entry['kept'] = [kept[layer] for layer in LAYERS]
            entries.append(entry)
            print(name, ratio, {key: entry[key] for key in ('margin', 'scores') if key in entry}, entry['counts'][LAYERS[1]])
    store('sketch', [Sketched.sketches[SKETCHED][0]])
    store('scores', scores)
    store('kvzip_scores', zip_scores)
    head = {
        'model': options.model.name,
        'text': options.text.name,
        'versions': {'kvpress': '0.5.5', 'transformers': transformers.__version__, 'torch': torch.__version__},
        'tokens': ids,
        'layers': LAYERS,
        'query_heads': model.config.num_attention_heads,
        'kv_heads': model.config.num_key_value_heads,
        'head_dim': model.config.head_dim,
        'rope_theta': model.config.rope_parameters['rope_theta'],
        'sinks': SINKS,
        'sketched_layer': SKETCHED,
        'kvzip_scores': list(ZIPPED),
    }
    lines = [f'{json.dumps(key)}: {json.dumps(value)}' for key, value in head.items()]
    rows = ',\n'.join(json.dumps(entry, separators=(',', ':')) for entry in entries)
    (options.folder / 'fixtures.json').write_text('{' + ',\n'.join(lines) + ',\n"entries": [\n' + rows + '\n]}\n')


if __name__ == '__main__':
    main()
