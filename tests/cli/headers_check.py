#!/usr/bin/env python3
"""Runs `kvasir info` on the headers of well-known models (tests/reference/headers), and on some with a part missing.

headers_check.py KVASIR

Each must run, with the parameters of Hugging Face's class and the memory that its configuration asks for, as computed
here.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / 'reference'))
import header_file  # noqa: E402

# Architectures that this version does not have. Their files must be refused by name.
NOT_YET = set()

# Tensors that hold no parameters of Hugging Face's classes, but for ERNIE's, which counts the bias of its router.
NO_PARAMETERS = ('rope_freqs.weight', 'rope_factors_long.weight', 'rope_factors_short.weight', '.exp_probs_b.bias',
                 '.layer_output_scale.weight')

# (model, key or tensor to leave out, what the message must name)
BROKEN = [
    ('Llama-3.2-1B', 'llama.embedding_length', 'llama.embedding_length'),
    ('Llama-3.2-1B', 'llama.feed_forward_length', 'llama.feed_forward_length'),
    ('Llama-3.2-1B', 'general.architecture', 'general.architecture'),
    ('Llama-3.2-1B', 'tokenizer.ggml.merges', 'tokenizer.ggml.merges'),
    ('Gemma-2-2B', 'tokenizer.ggml.tokens', 'tokenizer.ggml.tokens'),
    ('Qwen3-0.6B', 'qwen3.block_count', 'qwen3.block_count'),
    ('Qwen3-0.6B', 'qwen3.attention.layer_norm_rms_epsilon', 'qwen3.attention.layer_norm_rms_epsilon'),
    ('Qwen3-0.6B', 'blk.27.attn_k.weight', 'blk.27.attn_k.weight'),
    ('Qwen3-30B-A3B', 'qwen3moe.expert_count', 'qwen3moe.expert_count'),
    ('Qwen3-30B-A3B', 'qwen3moe.expert_used_count', 'qwen3moe.expert_used_count'),
    ('Qwen3.5-35B-A3B', 'qwen35moe.expert_feed_forward_length', 'qwen35moe.feed_forward_length'),
    ('Gemma-3-270M', 'gemma3.attention.sliding_window', 'gemma3.attention.sliding_window'),
    ('gpt-oss-20b', 'blk.5.attn_sinks.weight', 'blk.5.attn_sinks.weight'),
    ('LFM2-1.2B', 'lfm2.shortconv.l_cache', 'lfm2.shortconv.l_cache'),
]


def expect_layers(config):
    """What a configuration asks of the cache: (bytes a token, {window: (layers, bytes a token)}, state bytes)."""
    layers = config.get('num_hidden_layers') or config['n_layer']
    heads = config.get('num_attention_heads') or config['n_head']
    kv_heads = config.get('num_key_value_heads') or heads
    head_dim = config.get('head_dim') or (config.get('hidden_size') or config['n_embd']) // heads
    kinds = config.get('layer_types') or ['full_attention'] * layers
    own = layers - config.get('num_kv_shared_layers', 0)  # the last ones read keys of earlier ones
    tokens, windows, states = 0, {}, 0
    for kind in kinds[:own]:
        if kind == 'sliding_attention':
            count, bytes_each = windows.get(config['sliding_window'], (0, 0))
            windows[config['sliding_window']] = (count + 1, bytes_each + 4 * kv_heads * head_dim)
        elif kind == 'conv':
            states += 4 * (config['conv_L_cache'] - 1) * config['hidden_size']
        elif kind == 'linear_attention':
            keys = config['linear_num_key_heads'] * config['linear_key_head_dim']
            values = config['linear_num_value_heads'] * config['linear_value_head_dim']
            states += 4 * (config['linear_conv_kernel_dim'] - 1) * (2 * keys + values)
            states += 4 * values * config['linear_key_head_dim']
        elif kind == 'mamba':
            inner = config['mamba_n_heads'] * config['mamba_d_head']
            mixed = inner + 2 * config['mamba_n_groups'] * config['mamba_d_state']
            states += 4 * (config['mamba_d_conv'] - 1) * mixed + 4 * inner * config['mamba_d_state']
        elif config.get('kv_lora_rank'):
            tokens += 2 * (config['kv_lora_rank'] + config['qk_rope_head_dim'])  # the key is its own value
        elif config.get('global_head_dim'):
            tokens += 4 * (config.get('num_global_key_value_heads') or kv_heads) * config['global_head_dim']
        else:
            tokens += 4 * kv_heads * head_dim
    return tokens, windows, states


def expect_experts(config):
    """(count, used), or null."""
    count = next((config[key] for key in ('num_local_experts', 'num_experts', 'n_routed_experts', 'moe_num_experts')
                  if config.get(key)), 0)
    if not count:
        return None
    used = next(config[key] for key in ('num_experts_per_tok', 'top_k_experts', 'moe_k') if config.get(key))
    return count, used


def info(kvasir, path):
    done = subprocess.run([kvasir, 'info', '--json', path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_model(kvasir, name, path):
    header = header_file.load(name)
    header_file.write(header, path)
    found = info(kvasir, path)
    architecture = header['keys']['general.architecture'][1]
    assert found['metadata']['general.architecture'] == architecture
    extra = 0
    for tensor, _, dims, _ in header_file.tensors_of(header):
        counted = architecture == 'ernie4_5-moe' and tensor.endswith('.exp_probs_b.bias')
        if tensor.endswith(NO_PARAMETERS) and not counted:
            elements = 1
            for dim in dims:
                elements *= dim
            extra += elements
    assert found['parameters'] - extra == header['parameters'], (name, found['parameters'], extra, header['parameters'])
    if architecture in NOT_YET:
        assert not found['runs'] and f"'{architecture}'" in found['why_not'], (name, found['why_not'])
        return
    assert found['runs'], (name, found['why_not'])
    tokens, windows, states = expect_layers(header['config'])
    layers = found['layers']
    assert layers['kv_bytes_per_token'] == tokens, (name, layers, tokens)
    assert layers['state_bytes'] == states, (name, layers, states)
    assert {group['window']: group['layers'] for group in layers['windows']} == \
        {window: count for window, (count, _) in windows.items()}, (name, layers, windows)
    for group in layers['windows']:
        # A page of 32 tokens more at either end, and the tokens of a pass.
        least, most = group['window'], group['window'] + 512 + 64
        bytes_each = windows[group['window']][1]
        assert least * bytes_each <= group['bytes_max'] <= most * bytes_each, (name, group, bytes_each)
    experts = layers['experts'] and (layers['experts']['count'], layers['experts']['used'])
    assert experts == expect_experts(header['config']), (name, layers['experts'])
    assert bool(layers['latent']) == bool(header['config'].get('kv_lora_rank')), (name, layers['latent'])
    assert layers['shared_keys'] == header['config'].get('num_kv_shared_layers', 0), (name, layers)


def check_broken(kvasir, name, missing, named, path):
    header_file.write(header_file.load(name), path, without=(missing,))
    found = info(kvasir, path)
    why = found['why_not']
    assert not found['runs'] and named in why and '\n' not in why, (name, missing, why)


def main():
    kvasir = sys.argv[1]
    names = header_file.names()
    assert len(names) >= 40
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'header.gguf'
        for check, cases in ((check_model, [(name,) for name in names]), (check_broken, BROKEN)):
            for case in cases:
                try:
                    check(kvasir, *case, path)
                except AssertionError as failure:
                    failures.append(f'{case}: {failure}')
    print('\n'.join(failures) or f'{len(names)} models and {len(BROKEN)} broken files')
    sys.exit(bool(failures))


if __name__ == '__main__':
    main()
