#!/usr/bin/env python3
"""Writes tiny models of Hugging Face's classes as GGUF files, and the logits that transformers computes with them.

write_originals.py LLAMA_CPP FOLDER [NAME ...]

LLAMA_CPP: a source tree of llama.cpp, whose converter writes the GGUF files; only its vocabularies are replaced, by one
of bytes. FOLDER: tests/reference/originals. For each name (default: all) writes NAME.gguf and NAME.npy, float32 logits
[tokens][vocabulary] of the tokens that tokens() gives. Weights are random; those of matrices are rounded to float16, so
that the file holds in 2 bytes exactly what transformers computed with in float32. Needs torch, transformers and safetensors,
which the tests do not. Written with transformers 5.5.4, torch 2.15.0 and the converter of llama-cpp-python 0.3.36.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import numpy
import torch
import transformers

VOCABULARY = 96
TOKENS = 300


def tokens():
    return [3 + (7 * i * i + 3 * i + 5) % (VOCABULARY - 3) for i in range(TOKENS)]


# Sizes that all models share. Windows end within the tokens, and twice within a page of 32.
SIZES = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
             pad_token_id=0)
WINDOW = 70


def config(name, **changes):
    values = {**SIZES, **changes}
    return getattr(transformers, name)(**{key: value for key, value in values.items() if value is not None})


def layer_types(pattern, layers):
    """Every `pattern`th layer sees everything."""
    return ['full_attention' if (layer + 1) % pattern == 0 else 'sliding_attention' for layer in range(layers)]


def rope(theta=10000.0, **rest):
    return {'rope_type': 'default', 'rope_theta': theta, **rest}


# Written to configurations of models that do not have them as arguments: how published files say it.
PUBLISHED = {
    'deepseek_v2': dict(q_lora_rank=None),
    'deepseek_v3': dict(scoring_func='sigmoid'),
    'glm4_moe_lite': dict(scoring_func='sigmoid', first_k_dense_replace=1),
}

EXPERTS = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32)

# Value heads are twice as many as key heads; a quarter of a head of 32 rotates.
DELTA_NETS = dict(
    num_hidden_layers=5, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
    linear_value_head_dim=16, linear_conv_kernel_dim=4,
    layer_types=['linear_attention', 'full_attention', 'linear_attention', 'linear_attention', 'full_attention'],
    rope_parameters=rope(partial_rotary_factor=0.25, mrope_section=[2, 1, 1], mrope_interleaved=True))

# Latent attention: every head has a key of its own, made of one latent vector.
LATENT = dict(kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=24,
              num_key_value_heads=4, moe_intermediate_size=32, tie_word_embeddings=False)

# Mamba-2 on most layers. A scan of the original cuts the tokens into chunks; the last one is not whole.
MAMBA = dict(
    num_hidden_layers=5, layer_types=['mamba', 'attention', 'mamba', 'mamba', 'attention'], mamba_d_state=24, mamba_d_conv=4,
    mamba_expand=2, mamba_chunk_size=64, shared_intermediate_size=96, position_embedding_type=None,
    embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0, attention_multiplier=0.1)


def long_rope(original):
    """Three quarters of a head of 16 rotate. The class uses its long factors where the tokens are more than `original`."""
    pairs = 6
    return {'rope_type': 'longrope', 'rope_theta': 10000.0, 'partial_rotary_factor': 0.75,
            'original_max_position_embeddings': original, 'short_factor': [1.0 + 0.05 * i for i in range(pairs)],
            'long_factor': [1.0 + 0.9 * i for i in range(pairs)]}


# name: (class of the model, its configuration)
MODELS = {
    'llama': ('LlamaForCausalLM', lambda: config('LlamaConfig')),
    'qwen3': ('Qwen3ForCausalLM', lambda: config('Qwen3Config', head_dim=32)),
    'gemma2': ('Gemma2ForCausalLM', lambda: config(
        'Gemma2Config', head_dim=32, query_pre_attn_scalar=32, sliding_window=WINDOW, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0, hidden_activation='gelu_pytorch_tanh', num_hidden_layers=4,
        layer_types=layer_types(2, 4))),
    'gemma3': ('Gemma3ForCausalLM', lambda: config(
        'Gemma3TextConfig', head_dim=32, query_pre_attn_scalar=32, sliding_window=WINDOW, num_hidden_layers=7,
        layer_types=layer_types(6, 7),
        rope_parameters={'full_attention': rope(1e6), 'sliding_attention': rope()})),
    # The last three layers read the keys of layers 4 and 5.
    'gemma4': ('Gemma4ForCausalLM', lambda: config(
        'Gemma4TextConfig', head_dim=16, global_head_dim=32, num_key_value_heads=1, sliding_window=WINDOW,
        num_hidden_layers=9, layer_types=layer_types(3, 9), num_kv_shared_layers=3, use_double_wide_mlp=True,
        hidden_size_per_layer_input=16, vocab_size_per_layer_input=VOCABULARY, final_logit_softcapping=3.0,
        num_global_key_value_heads=None)),
    'gemma4_experts': ('Gemma4ForCausalLM', lambda: config(
        'Gemma4TextConfig', head_dim=16, global_head_dim=32, num_key_value_heads=2, num_global_key_value_heads=1,
        sliding_window=WINDOW, num_hidden_layers=4, layer_types=layer_types(2, 4), attention_k_eq_v=True,
        hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=8, top_k_experts=3,
        moe_intermediate_size=32)),
    'deepseek_v2': ('DeepseekV2ForCausalLM', lambda: config(
        'DeepseekV2Config', n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, topk_method='greedy',
        first_k_dense_replace=1, norm_topk_prob=False, routed_scaling_factor=1.5, **LATENT)),
    'deepseek_v3': ('DeepseekV3ForCausalLM', lambda: config(
        'DeepseekV3Config', q_lora_rank=48, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1,
        n_group=1, topk_group=1, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=1.5,
        rope_parameters={'rope_type': 'yarn', 'rope_theta': 1e4, 'factor': 4.0, 'beta_fast': 32.0, 'beta_slow': 1.0,
                         'mscale': 1.0, 'mscale_all_dim': 1.0, 'original_max_position_embeddings': 128},
        **LATENT)),
    'glm4_moe_lite': ('Glm4MoeLiteForCausalLM', lambda: config(
        'Glm4MoeLiteConfig', q_lora_rank=48, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1,
        n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.8, num_nextn_predict_layers=0,
        mlp_layer_types=['dense', 'sparse', 'sparse'],
        **LATENT)),
    'smollm3': ('SmolLM3ForCausalLM', lambda: config('SmolLM3Config', num_hidden_layers=5)),
    'granite': ('GraniteForCausalLM', lambda: config(
        'GraniteConfig', embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0,
        attention_multiplier=0.1)),
    'granitemoe': ('GraniteMoeForCausalLM', lambda: config(
        'GraniteMoeConfig', embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0,
        attention_multiplier=0.1, num_local_experts=8, num_experts_per_tok=3,
        intermediate_size=32)),
    'granitemoe_shared': ('GraniteMoeSharedForCausalLM', lambda: config(
        'GraniteMoeSharedConfig', embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0,
        attention_multiplier=0.1, num_local_experts=8, num_experts_per_tok=3, intermediate_size=32,
        shared_intermediate_size=64)),
    'granitehybrid': ('GraniteMoeHybridForCausalLM', lambda: config(
        'GraniteMoeHybridConfig', num_local_experts=0, num_experts_per_tok=0, mamba_n_heads=4, mamba_n_groups=2,
        **MAMBA)),
    'granitehybrid_experts': ('GraniteMoeHybridForCausalLM', lambda: config(
        'GraniteMoeHybridConfig', num_local_experts=8, num_experts_per_tok=3, intermediate_size=32, mamba_n_heads=16,
        mamba_n_groups=1, mamba_conv_bias=False, **MAMBA)),
    'cohere2': ('Cohere2ForCausalLM', lambda: config(
        'Cohere2Config', num_hidden_layers=5, sliding_window=WINDOW, layer_types=layer_types(4, 5), logit_scale=0.25,
        rotary_pct=1.0)),
    'olmo2': ('Olmo2ForCausalLM', lambda: config('Olmo2Config', tie_word_embeddings=False)),
    'olmo3': ('Olmo3ForCausalLM', lambda: config(
        'Olmo3Config', num_hidden_layers=5, sliding_window=WINDOW, layer_types=layer_types(4, 5),
        tie_word_embeddings=False)),
    'glm4': ('Glm4ForCausalLM', lambda: config(
        'Glm4Config', head_dim=32, attention_bias=True, tie_word_embeddings=False,
        rope_parameters=rope(partial_rotary_factor=0.5))),
    'exaone4': ('Exaone4ForCausalLM', lambda: config(
        'Exaone4Config', head_dim=16, num_hidden_layers=5, sliding_window=WINDOW, sliding_window_pattern='LLLG',
        layer_types=layer_types(4, 5))),
    'starcoder2': ('Starcoder2ForCausalLM', lambda: config(
        'Starcoder2Config', intermediate_size=128, sliding_window=None, use_bias=True)),
    'ernie4_5': ('Ernie4_5ForCausalLM', lambda: config('Ernie4_5Config', head_dim=16)),
    'qwen3moe': ('Qwen3MoeForCausalLM', lambda: config('Qwen3MoeConfig', head_dim=32, norm_topk_prob=True, **EXPERTS)),
    'mixtral': ('MixtralForCausalLM', lambda: config(
        'MixtralConfig', intermediate_size=32, num_local_experts=8, num_experts_per_tok=2, sliding_window=None, tie_word_embeddings=False)),
    'seed_oss': ('SeedOssForCausalLM', lambda: config('SeedOssConfig', head_dim=32, attention_bias=True)),
    'gpt_oss': ('GptOssForCausalLM', lambda: config(
        'GptOssConfig', intermediate_size=32, head_dim=32, num_local_experts=8, num_experts_per_tok=3, sliding_window=WINDOW,
        num_hidden_layers=4, layer_types=['sliding_attention', 'full_attention'] * 2, tie_word_embeddings=False,
        rope_parameters={'rope_type': 'yarn', 'rope_theta': 150000.0, 'factor': 4.0, 'beta_fast': 32.0,
                         'beta_slow': 1.0, 'original_max_position_embeddings': 128, 'truncate': False})),
    'glm4moe': ('Glm4MoeForCausalLM', lambda: config(
        'Glm4MoeConfig', head_dim=32, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
        n_shared_experts=1, n_group=1, topk_group=1, routed_scaling_factor=1.5, norm_topk_prob=True,
        first_k_dense_replace=1, attention_bias=True, use_qk_norm=True, tie_word_embeddings=False,
        rope_parameters=rope(partial_rotary_factor=0.5))),
    'ernie4_5_moe': ('Ernie4_5_MoeForCausalLM', lambda: config(
        'Ernie4_5_MoeConfig', intermediate_size=128, moe_num_experts=8, moe_k=3, moe_intermediate_size=32, moe_num_shared_experts=2,
        moe_layer_start_index=1, moe_layer_interval=1)),
    'mistral3': ('Ministral3ForCausalLM', lambda: config(
        'Ministral3Config', head_dim=32, rope_parameters={
            'rope_type': 'yarn', 'rope_theta': 1e6, 'factor': 4.0, 'beta_fast': 32.0, 'beta_slow': 1.0,
            'mscale': 1.0, 'mscale_all_dim': 1.0, 'original_max_position_embeddings': 128,
            'llama_4_scaling_beta': 0.1})),
    'gpt2': ('GPT2LMHeadModel', lambda: config(
        'GPT2Config', n_embd=64, n_layer=3, n_head=4, n_positions=512, n_ctx=512, tie_word_embeddings=True)),
    'hunyuan_dense': ('HunYuanDenseV1ForCausalLM', lambda: config('HunYuanDenseV1Config', head_dim=32)),
    'lfm2': ('Lfm2ForCausalLM', lambda: config(
        'Lfm2Config', num_hidden_layers=5, layer_types=['conv', 'full_attention', 'conv', 'conv', 'full_attention'],
        conv_L_cache=3, block_auto_adjust_ff_dim=False, block_ff_dim=96, block_ffn_dim_multiplier=1.0,
        block_multiple_of=32)),
    'lfm2moe': ('Lfm2MoeForCausalLM', lambda: config(
        'Lfm2MoeConfig', num_hidden_layers=4, layer_types=['conv', 'full_attention', 'conv', 'full_attention'],
        conv_L_cache=3, num_dense_layers=1, use_expert_bias=True, norm_topk_prob=True, routed_scaling_factor=1.0,
        **EXPERTS)),
    'qwen35': ('Qwen3_5ForCausalLM', lambda: config('Qwen3_5TextConfig', **DELTA_NETS)),
    'qwen35moe': ('Qwen3_5MoeForCausalLM', lambda: config(
        'Qwen3_5MoeTextConfig', shared_expert_intermediate_size=64, **EXPERTS, **DELTA_NETS)),
    'phi3': ('Phi3ForCausalLM', lambda: config('Phi3Config', sliding_window=WINDOW, rope_parameters={
        'rope_type': 'default', 'rope_theta': 10000.0, 'original_max_position_embeddings': 512})),
    'phi3_long': ('Phi3ForCausalLM', lambda: config(
        'Phi3Config', original_max_position_embeddings=128, rope_parameters=long_rope(128))),
    'phi3_short': ('Phi3ForCausalLM', lambda: config(
        'Phi3Config', max_position_embeddings=4096, original_max_position_embeddings=512, tie_word_embeddings=False,
        rope_parameters=long_rope(512))),
    'olmoe': ('OlmoeForCausalLM', lambda: config(
        'OlmoeConfig', intermediate_size=32, num_experts=8, num_experts_per_tok=3, tie_word_embeddings=False)),
}


def random_weights(model, seed):
    """Matrices of float16 numbers; norms and biases of other values than those they begin with."""
    random = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=random)
        if name.endswith('mamba.A_log'):  # decays over up to some tens of tokens
            value = noise - 2
        elif weight.dim() >= 2:
            value = noise / weight.shape[-1] ** 0.5
        elif ('norm' in name or 'scale' in name) and not name.endswith('bias'):
            value = weight.data + 0.2 * noise
        else:
            value = 0.2 * noise
        weight.data = value.half().float()
    for name, buffer in model.named_buffers():  # such as the bias of a router
        if 'bias' in name:
            buffer.data = (0.2 * torch.randn(buffer.shape, generator=random)).half().float()
        elif name.endswith('layer_scalar'):
            buffer.data = (1 + 0.2 * torch.randn(buffer.shape, generator=random)).half().float()
    model.tie_weights()


def normalise_groups(model):
    """Has Mamba-2 normalise each group by itself, as in the paper's code and in Zamba 2. The class of Granite normalises
    all of them together, which is the same for published models: they have one group."""
    from transformers.models.zamba2.modeling_zamba2 import Zamba2RMSNormGated
    for module in model.modules():
        if type(module).__name__ == 'GraniteMoeHybridMambaLayer':
            width = module.intermediate_size
            module.norm = Zamba2RMSNormGated(width, width // module.n_groups, module.layer_norm_epsilon)


def byte_vocabulary(self):
    """In place of the converter's set_vocab."""
    import gguf
    pieces = ['<unk>', '<s>', '</s>'] + [f'<0x{byte:02X}>' for byte in range(VOCABULARY - 3)]
    kinds = [gguf.TokenType.UNKNOWN] + 2 * [gguf.TokenType.CONTROL] + (VOCABULARY - 3) * [gguf.TokenType.BYTE]
    self.gguf_writer.add_tokenizer_model('llama')
    self.gguf_writer.add_tokenizer_pre('default')
    self.gguf_writer.add_token_list(pieces)
    self.gguf_writer.add_token_scores([0.0] * VOCABULARY)
    self.gguf_writer.add_token_types(kinds)
    self.gguf_writer.add_bos_token_id(1)
    self.gguf_writer.add_eos_token_id(2)


def convert(folder, to):
    import conversion
    import gguf
    hparams = conversion.ModelBase.load_hparams(folder, False)
    architecture = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
    known = conversion.get_model_class(architecture)
    for kind in (known, getattr(known, 'Ministral3Model', known)):  # one converter hands its work to another
        kind.set_vocab, kind.no_mtp = byte_vocabulary, True
    known(folder, gguf.LlamaFileType.MOSTLY_F16, to).write()


def write(name, folder):
    kind, configuration = MODELS[name]
    settings = configuration()
    settings._attn_implementation = 'eager'
    for key, value in PUBLISHED.get(name, {}).items():
        setattr(settings, key, value)
    model = getattr(transformers, kind)(settings).float().eval()
    normalise_groups(model)
    random_weights(model, seed=1 + sorted(MODELS).index(name))
    with torch.no_grad():
        logits = model(torch.tensor([tokens()])).logits[0].float().numpy()
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        if name.startswith(('gemma3', 'gemma4')):  # its converter counts the tokens, and a slice up to -1 would lack the last
            vocabulary = {str(token): token for token in range(VOCABULARY)}
            text = json.dumps({'model': {'vocab': vocabulary}, 'added_tokens': []})
            (pathlib.Path(saved) / 'tokenizer.json').write_text(text)
        convert(pathlib.Path(saved), folder / f'{name}.gguf')
    numpy.save(folder / f'{name}.npy', logits.astype(numpy.float32))
    print(name, (folder / f'{name}.gguf').stat().st_size, f'logits of deviation {logits.std():.3g}', flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('llama_cpp', type=pathlib.Path)
    parser.add_argument('folder', type=pathlib.Path)
    parser.add_argument('names', nargs='*', default=sorted(MODELS))
    options = parser.parse_args()
    sys.path[:0] = [str(options.llama_cpp), str(options.llama_cpp / 'gguf-py')]
    for name in options.names:
        write(name, options.folder)


if __name__ == '__main__':
    main()
