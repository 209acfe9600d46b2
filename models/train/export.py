"""Writes a checkpoint as GGUF: export.py CHECKPOINT TOKENIZER.model OUT.gguf --name NAME [--f16]

Matrices as Q8_0 (blocks of 32: a 16-bit scale, which is the largest magnitude over 127, and 32 rounded bytes) or F16,
norms as F32. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import argparse
import pathlib
import struct

import numpy as np
import sentencepiece
import torch

import network

UINT32, FLOAT32, BOOL, STRING, ARRAY, INT32 = 4, 6, 7, 8, 9, 5
F32, F16, Q8_0 = 0, 1, 8
FILE_TYPE = {F16: 1, Q8_0: 7}
ALIGNMENT = 32
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


class Metadata:
    def __init__(self):
        self.entries = []

    def add(self, key, kind, value):
        pack = {
            UINT32: lambda v: struct.pack("<I", v),
            INT32: lambda v: struct.pack("<i", v),
            FLOAT32: lambda v: struct.pack("<f", v),
            BOOL: lambda v: struct.pack("<?", v),
            STRING: string,
        }[kind]
        if isinstance(value, list):
            data = struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(map(pack, value))
        else:
            data = struct.pack("<I", kind) + pack(value)
        self.entries.append(string(key) + data)


def encoded(matrix, kind):
    if kind == F32:
        return matrix.astype("<f4").tobytes()
    if kind == F16:
        return matrix.astype("<f2").tobytes()
    blocks = matrix.astype(np.float32).reshape(-1, 32)
    scale = np.abs(blocks).max(1, keepdims=True) / 127
    with np.errstate(divide="ignore", invalid="ignore"):
        bytes_ = np.where(scale > 0, np.rint(blocks / scale), 0).astype(np.int8)
    return np.concatenate([scale.astype("<f2").view(np.int8), bytes_], 1).tobytes()


def tensors(parameters, split, layers, kind):
    """Names, arrays and kinds, as GGUF names them."""
    yield "token_embd.weight", parameters["embedding"], kind
    yield "output_norm.weight", parameters["norm"], F32
    for i in range(layers):
        own = {name: parameters[f"{i}.{name}"] for name in ("qkv", "output", "gate_up", "down")}
        q, k, v = split(f"{i}.qkv", own["qkv"])
        gate, up = split(f"{i}.gate_up", own["gate_up"])
        yield f"blk.{i}.attn_norm.weight", parameters[f"{i}.attention_norm"], F32
        yield f"blk.{i}.ffn_norm.weight", parameters[f"{i}.ffn_norm"], F32
        for name, matrix in (
            ("attn_q", q), ("attn_k", k), ("attn_v", v), ("attn_output", own["output"]),
            ("ffn_gate", gate), ("ffn_up", up), ("ffn_down", own["down"]),
        ):  # fmt: skip
            yield f"blk.{i}.{name}.weight", matrix, kind


def describe(meta, name, shape, tokenizer, kind):
    meta.add("general.architecture", STRING, "llama")
    meta.add("general.name", STRING, name)
    meta.add("general.license", STRING, "apache-2.0")
    meta.add("general.description", STRING, "Trained from scratch for Kvasir on public-domain English books")
    meta.add("general.file_type", UINT32, FILE_TYPE[kind])
    if kind == Q8_0:
        meta.add("general.quantization_version", UINT32, 2)
    meta.add("llama.vocab_size", UINT32, shape.vocabulary)
    meta.add("llama.context_length", UINT32, shape.context)
    meta.add("llama.embedding_length", UINT32, shape.width)
    meta.add("llama.block_count", UINT32, shape.layers)
    meta.add("llama.feed_forward_length", UINT32, shape.feed_forward)
    meta.add("llama.attention.head_count", UINT32, shape.heads)
    meta.add("llama.attention.head_count_kv", UINT32, shape.kv_heads)
    meta.add("llama.attention.key_length", UINT32, shape.head)
    meta.add("llama.attention.value_length", UINT32, shape.head)
    meta.add("llama.attention.layer_norm_rms_epsilon", FLOAT32, network.EPSILON)
    meta.add("llama.rope.dimension_count", UINT32, shape.head)
    meta.add("llama.rope.freq_base", FLOAT32, shape.rotary_base)

    def token_type(i):
        if tokenizer.is_unknown(i):
            return UNKNOWN
        if tokenizer.is_control(i):
            return CONTROL
        if tokenizer.is_byte(i):
            return BYTE
        return USER_DEFINED if tokenizer.id_to_piece(i).startswith("<|") else NORMAL

    ids = range(tokenizer.get_piece_size())
    meta.add("tokenizer.ggml.model", STRING, "llama")
    meta.add("tokenizer.ggml.pre", STRING, "default")
    meta.add("tokenizer.ggml.tokens", STRING, [tokenizer.id_to_piece(i) for i in ids])
    meta.add("tokenizer.ggml.scores", FLOAT32, [tokenizer.get_score(i) for i in ids])
    meta.add("tokenizer.ggml.token_type", INT32, [token_type(i) for i in ids])
    meta.add("tokenizer.ggml.bos_token_id", UINT32, tokenizer.bos_id())
    meta.add("tokenizer.ggml.eos_token_id", UINT32, tokenizer.eos_id())
    meta.add("tokenizer.ggml.unknown_token_id", UINT32, tokenizer.unk_id())
    meta.add("tokenizer.ggml.add_bos_token", BOOL, True)
    meta.add("tokenizer.ggml.add_eos_token", BOOL, False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--f16", action="store_true", help="matrices as F16, not Q8_0")
    options = parser.parse_args()

    state = torch.load(options.checkpoint, map_location="cpu")
    shape = network.Shape(**state["shape"])
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(options.tokenizer))
    if tokenizer.get_piece_size() != shape.vocabulary:
        raise SystemExit(f"{options.tokenizer} has {tokenizer.get_piece_size()} pieces, the model {shape.vocabulary}")
    kind = F16 if options.f16 else Q8_0
    meta = Metadata()
    describe(meta, options.name, shape, tokenizer, kind)
    infos, data = [], b""
    for name, tensor, own in tensors(state["parameters"], shape.split, shape.layers, kind):
        dimensions = tuple(reversed(tensor.shape))  # GGUF names the fastest one first
        info = string(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, own, len(data))
        infos.append(info)
        data += encoded(tensor.numpy(), own)
        data += bytes(-len(data) % ALIGNMENT)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(meta.entries)) + b"".join(meta.entries + infos)
    header += bytes(-len(header) % ALIGNMENT)
    options.out.write_bytes(header + data)
    print(f"{options.out}: {len(header) + len(data):,} bytes")


if __name__ == "__main__":
    main()
