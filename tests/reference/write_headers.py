#!/usr/bin/env python3
"""Writes the headers that llama.cpp's converter makes of well-known models, without their weights and vocabularies.

write_headers.py LLAMA_CPP FOLDER [NAME ...]

LLAMA_CPP: a source tree of llama.cpp. FOLDER: tests/reference/headers. For each name of published_configs.py (default:
all) makes Hugging Face's class without memory for its weights, lets the converter name tensors and write keys, and
writes NAME.json:
  config      what tests compute expectations from: the configuration as transformers saves it
  known       how it is known (published_configs.py)
  parameters  of the class, tied ones once
  tokenizer   [tokenizer.ggml.model, tokenizer.ggml.pre] of published files
  keys        {name: [type, value]}, arrays as ["[type]", values]
  tensors     [[name, type, dims, layers]]: layers are "0-3,5" where the name has a {} for their number; dims in the order of
              the file; a fifth entry holds the values of a tensor that is not made of weights
Fails if the class does not have the published number of parameters. Needs torch and transformers, which the tests do
not. Written with transformers 5.5.4, torch 2.15.0 and the converter of llama-cpp-python 0.3.36.
"""
import argparse
import json
import logging
import pathlib
import re
import sys
import tempfile

import torch
import transformers

from published_configs import MODELS


def make_class(model):
    values = dict(model.values)
    settings = getattr(transformers, model.config)(**values)
    for key, value in model.published.items():
        setattr(settings, key, value)
    with torch.device('meta'):
        return getattr(transformers, model.kind)(settings)


def count_parameters(made):
    return sum(weight.numel() for weight in made.parameters())  # tied weights are one parameter


def published_tensors(made):
    """The tensors of the class under their names in published files."""
    from transformers.core_model_loading import revert_weight_conversion
    tensors = made.state_dict()
    if made.config.tie_word_embeddings:
        for name in list(made._tied_weights_keys or ()):
            tensors.pop(name, None)
    return revert_weight_conversion(made, tensors)


def no_vocabulary(self):
    """In place of the converter's set_vocab."""


def converter_of(folder, tensors, published):
    import conversion
    import gguf
    from conversion.base import LazyTorchTensor

    def index_tensors(self, remote_hf_model_id=None):
        found = {}
        for name, tensor in tensors.items():
            def load(tensor=tensor):
                meta = torch.empty(tensor.shape, dtype=tensor.dtype, device='meta')
                return LazyTorchTensor(meta=meta, func=lambda: None)
            item = self.filter_tensors((name, load))
            if item:
                found[item[0]] = item[1]
        return found

    hparams = {**conversion.ModelBase.load_hparams(folder, False), **published}
    known = conversion.get_model_class(conversion.get_model_architecture(hparams, conversion.ModelType.TEXT))
    known = getattr(known, 'Ministral3Model', known)  # one converter hands its work to another
    known.set_vocab, known.no_mtp, known.index_tensors = no_vocabulary, True, index_tensors
    known._original_block_count = hparams['num_hidden_layers'] if 'num_hidden_layers' in hparams else hparams['n_layer']
    return known(folder, gguf.LlamaFileType.MOSTLY_F16, folder / 'header.gguf', hparams=hparams)


def key_json(value):
    import gguf
    kind = value.type.name.lower()
    if value.type != gguf.GGUFValueType.ARRAY:
        return [kind, value.value]
    of = value.sub_type or gguf.GGUFValueType.get_type(value.value[0])
    return [f'[{of.name.lower()}]', list(value.value)]


def layer_ranges(layers):
    ranges = []
    for layer in sorted(layers):
        if ranges and ranges[-1][1] == layer - 1:
            ranges[-1][1] = layer
        else:
            ranges.append([layer, layer])
    return ','.join(str(first) if first == last else f'{first}-{last}' for first, last in ranges)


def tensors_json(writer, types):
    import gguf
    import numpy
    rows = {}
    for name, info in writer.tensors[0].items():
        layer = re.match(r'blk\.(\d+)\.', name)
        pattern = re.sub(r'^blk\.\d+\.', 'blk.{}.', name)
        kind = next((kind for suffix, kind in types.items() if name.endswith(suffix)), info.dtype.name)
        row = rows.setdefault((pattern, kind, tuple(reversed([int(dim) for dim in info.shape]))), ([], []))
        if layer:
            row[0].append(int(layer[1]))
        lazy = info.tensor
        while isinstance(lazy, gguf.LazyNumpyTensor) and lazy._data is None and lazy._args and lazy._args[0] is not None:
            lazy = lazy._args[0]
        values = getattr(lazy, '_data', lazy)
        if isinstance(values, (torch.Tensor, numpy.ndarray)) and values.size != 0 and name.startswith('rope'):
            row[1].extend(float(x) for x in numpy.asarray(values).reshape(-1))
    return [[name, kind, dims, layer_ranges(layers)] + ([values] if values else [])
            for (name, kind, dims), (layers, values) in rows.items()]


def write(name, folder):
    model = MODELS[name]
    made = make_class(model)
    parameters = count_parameters(made)
    if model.parameters and parameters != model.parameters:
        raise ValueError(f'{name} has {parameters} parameters; {model.parameters} are published')
    with tempfile.TemporaryDirectory() as saved:
        saved = pathlib.Path(saved)
        made.config.architectures = [model.kind]
        made.config.save_pretrained(saved)
        config = {**json.loads((saved / 'config.json').read_text()), **model.published}
        vocabulary = {str(token): token for token in range(config['vocab_size'])}  # some converters count the tokens
        (saved / 'tokenizer.json').write_text(json.dumps({'model': {'vocab': vocabulary}, 'added_tokens': []}))
        converter = converter_of(saved, published_tensors(made), model.published)
        converter.prepare_tensors()
        converter.prepare_metadata(vocab_only=False)
    writer = converter.gguf_writer
    keys = {key: key_json(value) for key, value in writer.kv_data[0].items() if not key.startswith('tokenizer.')}
    keys['general.name'] = ['string', name]
    out = {'config': {key: value for key, value in config.items() if key not in ('id2label', 'label2id')},
           'known': model.known, 'parameters': parameters, 'tokenizer': list(model.tokenizer), 'keys': keys,
           'tensors': tensors_json(writer, model.types)}
    rows = [f'"{part}":{json.dumps(value, separators=(",", ":"))}' for part, value in out.items()]
    (folder / f'{name}.json').write_text('{' + ',\n'.join(rows) + '}\n')
    print(f'{name}: {parameters} parameters ({"as published" if model.parameters else "not compared"}), '
          f'{len(writer.tensors[0])} tensors', flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('llama_cpp', type=pathlib.Path)
    parser.add_argument('folder', type=pathlib.Path)
    parser.add_argument('names', nargs='*', default=list(MODELS))
    options = parser.parse_args()
    sys.path[:0] = [str(options.llama_cpp), str(options.llama_cpp / 'gguf-py')]
    logging.disable(logging.INFO)
    failed = []
    for name in options.names:
        try:
            write(name, options.folder)
        except Exception as problem:  # the other models are still written
            failed.append(name)
            print(f'{name}: {type(problem).__name__}: {problem}', file=sys.stderr, flush=True)
    sys.exit(bool(failed))


if __name__ == '__main__':
    main()
