#!/usr/bin/env python3
"""Writes logits of Hugging Face's implementation of a family, for small models of random weights.

huggingface_vectors.py MODEL.gguf > tests/reference/vectors/NAME.txt

The model is one that reference_dump or write_random_model made, so its weights need not be in the repository: the test
makes them again. Needs torch, transformers and gguf, which the tests do not; written with transformers 5.2.0 and torch
2.15.0 on a processor. Lines: the token ids, then for some rows their number and all logits.
"""
import sys

import gguf
import numpy
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, SmolLM3Config, SmolLM3ForCausalLM

TOKENS = 48
ROWS = (0, 1, 22, 23, 24, 47)  # on both sides of the window of 23


def read(path):
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {t.name: torch.tensor(numpy.array(t.data, dtype=numpy.float64)) for t in reader.tensors}
    return keys, tensors


NAMES = {'attn_q.weight': 'self_attn.q_proj.weight', 'attn_k.weight': 'self_attn.k_proj.weight',
         'attn_v.weight': 'self_attn.v_proj.weight', 'attn_output.weight': 'self_attn.o_proj.weight',
         'attn_q_norm.weight': 'self_attn.q_norm.weight', 'attn_k_norm.weight': 'self_attn.k_norm.weight',
         'attn_norm.weight': 'input_layernorm.weight', 'ffn_gate.weight': 'mlp.gate_proj.weight',
         'ffn_up.weight': 'mlp.up_proj.weight', 'ffn_down.weight': 'mlp.down_proj.weight'}


def filled(model, tensors, names):
    state = {'model.embed_tokens.weight': tensors.pop('token_embd.weight'),
             'model.norm.weight': tensors.pop('output_norm.weight')}
    for name, tensor in tensors.items():
        _, layer, rest = name.split('.', 2)
        state[f'model.layers.{layer}.{names[rest]}'] = tensor
    model = model.double().eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {'lm_head.weight'}, (missing, unexpected)
    model.tie_weights()
    return model


def gemma3(keys, tensors):
    key = lambda name: keys['gemma3.' + name]
    layers, pattern = key('block_count'), key('attention.sliding_window_pattern')
    config = Gemma3TextConfig(
        vocab_size=key('vocab_size'), hidden_size=key('embedding_length'),
        intermediate_size=key('feed_forward_length'), num_hidden_layers=layers,
        num_attention_heads=key('attention.head_count'), num_key_value_heads=key('attention.head_count_kv'),
        head_dim=key('attention.key_length'), query_pre_attn_scalar=key('attention.key_length'),
        sliding_window=key('attention.sliding_window'), max_position_embeddings=key('context_length'),
        rms_norm_eps=float(key('attention.layer_norm_rms_epsilon')), tie_word_embeddings=True,
        layer_types=['full_attention' if (layer + 1) % pattern == 0 else 'sliding_attention'
                     for layer in range(layers)],
        rope_parameters={'full_attention': {'rope_type': 'default', 'rope_theta': float(key('rope.freq_base'))},
                         'sliding_attention': {'rope_type': 'default', 'rope_theta': 10000.0}},
        attn_implementation='eager')
    for name in tensors:
        if 'norm' in name:
            tensors[name] = tensors[name] - 1  # the file's weights include Gemma's "1 +"
    return filled(Gemma3ForCausalLM(config), tensors, {
        **NAMES, 'post_attention_norm.weight': 'post_attention_layernorm.weight',
        'ffn_norm.weight': 'pre_feedforward_layernorm.weight', 'post_ffw_norm.weight': 'post_feedforward_layernorm.weight'})


def smollm3(keys, tensors):
    key = lambda name: keys['smollm3.' + name]
    heads = key('attention.head_count'), key('attention.head_count_kv')
    for name, tensor in tensors.items():
        # The file pairs dimensions 2i and 2i + 1, the original i and i + half.
        for projection, count in (('attn_q.weight', heads[0]), ('attn_k.weight', heads[1])):
            if name.endswith(projection):
                pairs = tensor.reshape(count, -1, 2, tensor.shape[1])
                tensors[name] = pairs.transpose(1, 2).reshape(tensor.shape)
    config = SmolLM3Config(
        vocab_size=key('vocab_size'), hidden_size=key('embedding_length'),
        intermediate_size=key('feed_forward_length'), num_hidden_layers=key('block_count'),
        num_attention_heads=heads[0], num_key_value_heads=heads[1], max_position_embeddings=key('context_length'),
        rms_norm_eps=float(key('attention.layer_norm_rms_epsilon')), tie_word_embeddings=True, pad_token_id=0,
        rope_parameters={'rope_type': 'default', 'rope_theta': float(key('rope.freq_base'))},
        attn_implementation='eager')
    return filled(SmolLM3ForCausalLM(config), tensors, {**NAMES, 'ffn_norm.weight': 'post_attention_layernorm.weight'})


keys, tensors = read(sys.argv[1])
model = {'gemma3': gemma3, 'smollm3': smollm3}[keys['general.architecture']](keys, tensors)
vocabulary = keys[keys['general.architecture'] + '.vocab_size']
ids = [(7 * i * i + 3 * i + 5) % vocabulary for i in range(TOKENS)]
with torch.no_grad():
    logits = model(torch.tensor([ids])).logits[0]
print('tokens', *ids)
for row in ROWS:
    print('row', row, *(f'{x:.9g}' for x in logits[row].tolist()))
