"""Configurations of well-known models, as arguments of transformers' configuration classes.

MODELS: name -> Model. `known` says how the values are known:
  'count'     the class made from them has exactly the published number of parameters (`parameters`), so that sizes are
              right; what does not change it (rotary base, context, window) is remembered
  'copy'      read in a published copy of the model's config.json, or in the metadata of its published GGUF file
  'defaults'  the defaults of transformers' class, which names this model as its example
  'memory'    remembered
Two things are not the published ones: the frequency factors of longrope, which are all 1, and vocabularies, which are
left out.
"""
import dataclasses


@dataclasses.dataclass
class Model:
    kind: str                # class of transformers
    config: str
    values: dict
    known: str
    tokenizer: tuple         # tokenizer.ggml.model, tokenizer.ggml.pre
    parameters: int = 0      # published; 0: not known exactly
    published: dict = dataclasses.field(default_factory=dict)  # keys of config.json that the class does not take
    types: dict = dataclasses.field(default_factory=dict)      # end of a name -> type of published files, unless F16


def causal(prefix, values, known, tokenizer, parameters=0, text='', types=None, **published):
    return Model(f'{prefix}ForCausalLM', f'{prefix}{text}Config', values, known, tokenizer, parameters, published, types or {})


def rope(theta=10000.0, **rest):
    return {'rope_type': 'default', 'rope_theta': theta, **rest}


def llama3_rope(theta, factor):
    return rope(theta, rope_type='llama3', factor=factor, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=8192)


def sizes(width, hidden, layers, heads, kv_heads, vocabulary, context, tied, **rest):
    return dict(hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=kv_heads, vocab_size=vocabulary, max_position_embeddings=context,
                tie_word_embeddings=tied, **rest)


def kinds(layers, full, other='sliding_attention', own='full_attention'):
    """`full`: every so many-th layer sees everything, or the indices of the layers that do."""
    sees_all = full if isinstance(full, list) else range(full - 1, layers, full)
    return [own if layer in sees_all else other for layer in range(layers)]


SPM = ('llama', 'default')


def bpe(pre):
    return ('gpt2', pre)


def gemma3(**values):
    return dict(head_dim=256, layer_types=kinds(values['num_hidden_layers'], 6), **values)


def gemma4(full_base=1e6, **values):
    return dict(
        head_dim=256, global_head_dim=512, final_logit_softcapping=30.0, vocab_size_per_layer_input=262144,
        rope_parameters={'sliding_attention': rope(),
                         'full_attention': rope(full_base, rope_type='proportional', partial_rotary_factor=0.25)}, **values)


QWEN35_ROPE = rope(1e7, partial_rotary_factor=0.25, mrope_section=[11, 11, 10], mrope_interleaved=True)
GRANITE = dict(embedding_multiplier=12.0, residual_multiplier=0.22)
GRANITE_H = dict(
    layer_types=kinds(40, [5, 15, 25, 35], 'mamba', 'attention'), mamba_n_heads=48, mamba_d_head=64, mamba_d_state=128,
    mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2, mamba_conv_bias=True, mamba_proj_bias=False, logits_scaling=6.0,
    attention_multiplier=0.0078125, rms_norm_eps=1e-5, position_embedding_type='nope', **GRANITE)
LONGROPE = dict(rope_type='longrope', original_max_position_embeddings=4096)

MODELS = {
    'Llama-3.2-1B': causal('Llama', sizes(
        2048, 8192, 16, 32, 8, 128256, 131072, True, head_dim=64, rms_norm_eps=1e-5, rope_parameters=llama3_rope(5e5, 32.0)),
        'count', bpe('llama-bpe'), 1235814400),
    'Llama-3.2-3B': causal('Llama', sizes(
        3072, 8192, 28, 24, 8, 128256, 131072, True, head_dim=128, rms_norm_eps=1e-5, rope_parameters=llama3_rope(5e5, 32.0)),
        'count', bpe('llama-bpe'), 3212749824),
    'Llama-3.1-8B': causal('Llama', sizes(
        4096, 14336, 32, 32, 8, 128256, 131072, False, rms_norm_eps=1e-5, rope_parameters=llama3_rope(5e5, 8.0)),
        'count', bpe('llama-bpe'), 8030261248),
    'Mistral-7B-v0.3': causal('Mistral', sizes(
        4096, 14336, 32, 32, 8, 32768, 32768, False, rms_norm_eps=1e-5, sliding_window=None, rope_parameters=rope(1e6)),
        'count', SPM, 7248023552),
    'Mixtral-8x7B-v0.1': causal('Mixtral', sizes(
        4096, 14336, 32, 32, 8, 32000, 32768, False, rms_norm_eps=1e-5, sliding_window=None, num_local_experts=8,
        num_experts_per_tok=2, rope_parameters=rope(1e6)), 'count', SPM, 46702792704),
    'Ministral-3-8B': causal('Ministral3', {}, 'defaults', bpe('tekken')),
    'Qwen2.5-0.5B': causal('Qwen2', sizes(
        896, 4864, 24, 14, 2, 151936, 32768, True, rms_norm_eps=1e-6, rope_parameters=rope(1e6)),
        'count', bpe('qwen2'), 494032768),
    'Qwen2.5-7B': causal('Qwen2', sizes(
        3584, 18944, 28, 28, 4, 152064, 131072, False, rms_norm_eps=1e-6, rope_parameters=rope(1e6)),
        'count', bpe('qwen2'), 7615616512),
    'Qwen3-0.6B': causal('Qwen3', sizes(
        1024, 3072, 28, 16, 8, 151936, 40960, True, head_dim=128, rope_parameters=rope(1e6)),
        'count', bpe('qwen2'), 596049920),
    'Qwen3-4B': causal('Qwen3', sizes(
        2560, 9728, 36, 32, 8, 151936, 40960, True, head_dim=128, rope_parameters=rope(1e6)),
        'copy', bpe('qwen2'), 4022468096),
    'Qwen3-8B': causal('Qwen3', sizes(
        4096, 12288, 36, 32, 8, 151936, 40960, False, head_dim=128, rope_parameters=rope(1e6)),
        'count', bpe('qwen2'), 8190735360),
    'Qwen3-30B-A3B': causal('Qwen3Moe', sizes(
        2048, 6144, 48, 32, 4, 151936, 40960, False, head_dim=128, moe_intermediate_size=768, num_experts=128,
        num_experts_per_tok=8, norm_topk_prob=True, rope_parameters=rope(1e6)), 'count', bpe('qwen2'), 30532122624),
    'Qwen3.5-4B': causal('Qwen3_5', sizes(
        2560, 9216, 32, 16, 4, 248320, 262144, True, head_dim=256, linear_num_value_heads=32, rope_parameters=QWEN35_ROPE),
        'memory', bpe('qwen35'), text='Text'),
    'Qwen3.5-35B-A3B': causal('Qwen3_5Moe', dict(max_position_embeddings=262144, rope_parameters=QWEN35_ROPE),
                              'defaults', bpe('qwen35'), text='Text'),
    'Gemma-2-2B': causal('Gemma2', sizes(
        2304, 9216, 26, 8, 4, 256000, 8192, True, head_dim=256, query_pre_attn_scalar=256, sliding_window=4096),
        'copy', SPM, 2614341888),
    'Gemma-2-9B': causal('Gemma2', sizes(
        3584, 14336, 42, 16, 8, 256000, 8192, True, head_dim=256, query_pre_attn_scalar=256, sliding_window=4096),
        'copy', SPM, 9241705984),
    'Gemma-3-270M': causal('Gemma3', gemma3(**sizes(
        640, 2048, 18, 4, 1, 262144, 32768, True, query_pre_attn_scalar=256, sliding_window=512)),
        'count', SPM, 268098176, text='Text'),
    'Gemma-3-1B': causal('Gemma3', gemma3(**sizes(
        1152, 6912, 26, 4, 1, 262144, 32768, True, query_pre_attn_scalar=256, sliding_window=512)),
        'count', SPM, 999885952, text='Text'),
    'Gemma-3-4B': causal('Gemma3', gemma3(**sizes(
        2560, 10240, 34, 8, 4, 262208, 131072, True, query_pre_attn_scalar=256, sliding_window=1024,
        rope_parameters={'sliding_attention': rope(), 'full_attention': rope(1e6, rope_type='linear', factor=8.0)})),
        'memory', SPM, text='Text'),
    'Gemma-4-E2B': causal('Gemma4', gemma4(**sizes(
        1536, 6144, 35, 8, 1, 262144, 131072, True, sliding_window=512, layer_types=kinds(35, 5), num_kv_shared_layers=20,
        use_double_wide_mlp=True, hidden_size_per_layer_input=256, num_global_key_value_heads=None)),
        'memory', ('gemma4', 'gemma4'), text='Text'),
    'Gemma-4-26B-A4B': causal('Gemma4', gemma4(**sizes(
        2816, 2112, 30, 16, 8, 262144, 262144, True, sliding_window=1024, layer_types=kinds(30, 6), num_kv_shared_layers=0,
        hidden_size_per_layer_input=0, num_global_key_value_heads=2, attention_k_eq_v=True, enable_moe_block=True,
        num_experts=128, top_k_experts=8, moe_intermediate_size=704)), 'copy', ('gemma4', 'gemma4'), text='Text'),
    'Gemma-4-31B': causal('Gemma4', gemma4(**sizes(
        5376, 21504, 60, 32, 16, 262144, 262144, True, sliding_window=1024, layer_types=kinds(60, 6),
        num_kv_shared_layers=0, hidden_size_per_layer_input=0, num_global_key_value_heads=4, attention_k_eq_v=True)),
        'memory', ('gemma4', 'gemma4'), text='Text'),
    'gpt-oss-20b': causal('GptOss', dict(
        num_hidden_layers=24, num_local_experts=32, layer_types=['sliding_attention', 'full_attention'] * 12),
        'count', bpe('gpt-4o'), 20914757184, types={'_exps.weight': 'MXFP4'}),
    'Phi-3.5-mini': causal('Phi3', sizes(
        3072, 8192, 32, 32, 32, 32064, 131072, False, rms_norm_eps=1e-5, original_max_position_embeddings=4096,
        rope_parameters=rope(short_factor=[1.0] * 48, long_factor=[1.0] * 48, **LONGROPE)), 'count', SPM, 3821079552),
    'Phi-4-mini': causal('Phi3', sizes(
        3072, 8192, 32, 24, 8, 200064, 131072, True, rms_norm_eps=1e-5, original_max_position_embeddings=4096,
        bos_token_id=199999, eos_token_id=199999, pad_token_id=199999, rope_parameters=rope(
            partial_rotary_factor=0.75, short_factor=[1.0] * 48, long_factor=[1.0] * 48, **LONGROPE)),
        'count', bpe('gpt-4o'), 3836021760),
    'Granite-3.3-2B': causal('Granite', sizes(
        2048, 8192, 40, 32, 8, 49159, 131072, True, rms_norm_eps=1e-5, logits_scaling=8.0, attention_multiplier=0.015625,
        rope_parameters=rope(1e7), **GRANITE), 'memory', bpe('refact')),
    'Granite-4.0-H-1B': causal('GraniteMoeHybrid', sizes(
        1536, 4096, 40, 12, 4, 100352, 131072, True, num_local_experts=0, num_experts_per_tok=0,
        shared_intermediate_size=4096, **GRANITE_H), 'copy', bpe('dbrx')),
    'Granite-4.0-H-Tiny': causal('GraniteMoeHybrid', sizes(
        1536, 512, 40, 12, 4, 100352, 131072, True, num_local_experts=64, num_experts_per_tok=6,
        shared_intermediate_size=1024, **GRANITE_H), 'memory', bpe('dbrx')),
    'OLMo-2-7B': causal('Olmo2', sizes(
        4096, 11008, 32, 32, 32, 100352, 4096, False, rms_norm_eps=1e-6, rope_parameters=rope(5e5)),
        'count', bpe('dbrx'), 7298617344),
    'OLMo-3-7B': causal('Olmo3', sizes(
        4096, 11008, 32, 32, 32, 100278, 65536, False, rms_norm_eps=1e-6, sliding_window=4096, layer_types=kinds(32, 4),
        rope_parameters=rope(5e5, rope_type='yarn', factor=8.0, original_max_position_embeddings=8192, beta_fast=32.0,
                             beta_slow=1.0, attention_factor=1.2079441541679836)), 'memory', bpe('dbrx')),
    'OLMoE-1B-7B': causal('Olmoe', sizes(
        2048, 1024, 16, 16, 16, 50304, 4096, False, num_experts=64, num_experts_per_tok=8), 'count', bpe('olmo'), 6919161856),
    'SmolLM3-3B': causal('SmolLM3', dict(max_position_embeddings=65536, rope_parameters=rope(5e6)),
                         'count', bpe('llama-bpe'), 3075098624),
    'StarCoder2-3B': causal('Starcoder2', sizes(
        3072, 12288, 30, 24, 2, 49152, 16384, True, sliding_window=4096, use_bias=True, rope_parameters=rope(999999.4420358813)),
        'count', bpe('starcoder'), 3030371328),
    'GLM-4-9B-0414': causal('Glm4', dict(
        max_position_embeddings=32768, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=rope(partial_rotary_factor=0.5)), 'count', bpe('glm4'), 9400279040),
    'GLM-4.7-Flash': causal('Glm4MoeLite', dict(
        tie_word_embeddings=False, rope_parameters=rope(1e6)), 'copy', bpe('glm4'), scoring_func='sigmoid',
        first_k_dense_replace=1, num_nextn_predict_layers=0),
    'DeepSeek-V2-Lite': causal('DeepseekV2', sizes(
        2048, 10944, 27, 16, 16, 102400, 163840, False, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64,
        v_head_dim=128, n_routed_experts=64, num_experts_per_tok=6, n_shared_experts=2, moe_intermediate_size=1408,
        first_k_dense_replace=1, topk_method='greedy', norm_topk_prob=False, routed_scaling_factor=1.0, q_lora_rank=None,
        rope_parameters=rope(rope_type='yarn', factor=40.0, beta_fast=32.0, beta_slow=1.0, mscale=0.707,
                             mscale_all_dim=0.707, original_max_position_embeddings=4096)),
        'count', bpe('deepseek-llm'), 15706484224, q_lora_rank=None),
    'EXAONE-4.0-1.2B': causal('Exaone4', sizes(
        2048, 4096, 30, 32, 8, 102400, 65536, True, head_dim=64, rms_norm_eps=1e-5, sliding_window=None,
        sliding_window_pattern=None, layer_types=['full_attention'] * 30, rope_parameters=llama3_rope(1e6, 16.0)),
        'count', bpe('exaone4'), 1279391488),
    'Command-R7B': causal('Cohere2', sizes(
        4096, 14336, 32, 32, 8, 256000, 8192, True, head_dim=128, layer_norm_eps=1e-5, logit_scale=0.25,
        sliding_window=4096, layer_types=kinds(32, 4), rope_parameters=rope(5e4)),
        'copy', bpe('command-r'), rotary_pct=1.0),
    'Seed-OSS-36B': causal('SeedOss', sizes(
        5120, 27648, 64, 80, 8, 155136, 524288, False, head_dim=128, attention_bias=True, rms_norm_eps=1e-6,
        rope_parameters=rope(1e7)), 'copy', bpe('seed-coder'), 36151104512),
    'ERNIE-4.5-0.3B': causal('Ernie4_5', {}, 'defaults', SPM, 360748032),
    'ERNIE-4.5-21B-A3B': causal('Ernie4_5_Moe', {}, 'defaults', SPM, 21825437888),
    'Hunyuan-0.5B': causal('HunYuanDenseV1', sizes(
        1024, 3584, 24, 16, 8, 120818, 262144, True, head_dim=128,
        rope_parameters=rope(rope_type='dynamic', alpha=1000.0, factor=1.0)), 'memory', bpe('hunyuan-dense')),
    'Hunyuan-7B': causal('HunYuanDenseV1', sizes(
        4096, 14336, 32, 32, 8, 128167, 262144, True, head_dim=128,
        rope_parameters=rope(rope_type='dynamic', alpha=1000.0, factor=1.0)), 'memory', bpe('hunyuan')),
    'LFM2-1.2B': causal('Lfm2', sizes(
        2048, 12288, 16, 32, 8, 65536, 128000, True, layer_types=kinds(16, [2, 5, 8, 10, 12, 14], 'conv'), block_ff_dim=12288,
        block_auto_adjust_ff_dim=True, block_multiple_of=256), 'count', bpe('lfm2'), 1170340608),
    'LFM2-8B-A1B': causal('Lfm2Moe', dict(
        num_hidden_layers=24, layer_types=kinds(24, [2, 6, 10, 14, 18, 21], 'conv')), 'count', bpe('lfm2'), 8339929856),
    'GPT-2': Model('GPT2LMHeadModel', 'GPT2Config', {}, 'defaults', bpe('gpt-2'), 124439808, dict(n_ctx=1024)),
    'Pythia-410M': causal('GPTNeoX', dict(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, vocab_size=50304,
        max_position_embeddings=2048, tie_word_embeddings=False, rope_parameters=rope(partial_rotary_factor=0.25)),
        'count', bpe('olmo'), 405334016, rotary_pct=0.25),
}
