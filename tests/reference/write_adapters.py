#!/usr/bin/env python3
"""Writes LoRA adapters of peft for the models of write_originals.py as GGUF files, and the logits that transformers and
peft compute with model and adapter.

write_adapters.py LLAMA_CPP FOLDER [NAME ...]

LLAMA_CPP: a source tree of llama.cpp, whose convert_lora_to_gguf.py writes the GGUF files. FOLDER:
tests/reference/adapters. For each name (default: all) writes NAME.gguf and NAME.npy, float32 logits [tokens][vocabulary].
The base model is tests/reference/originals/NAME.gguf. Adapters are random, and rounded so that the file holds exactly
what peft computed with. Needs peft besides what write_originals.py needs. Written with peft 0.21.2, transformers 5.5.4,
torch 2.15.0 and the converter of llama-cpp-python 0.3.36.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy
import peft
import torch
import transformers

import write_originals

LAYERS = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']

# name: (matrices, ranks that differ from 4, type of the file)
ADAPTERS = {
    'llama': (LAYERS, {'q_proj': 5, 'down_proj': 20}, 'f32'),
    'seed_oss': (LAYERS, {'v_proj': 16}, 'f16'),
    'glm4': (['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_up_proj', 'down_proj', 'lm_head'], {}, 'bf16'),
    'qwen35': (LAYERS + ['in_proj_qkv', 'in_proj_z', 'in_proj_b', 'in_proj_a', 'out_proj'], {}, 'f32'),
}
TYPES = {'f32': torch.float32, 'f16': torch.float16, 'bf16': torch.bfloat16}


# The converter as a program, but without layers that guess further tokens, which these models lack.
CONVERTER = """
import runpy, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + '/gguf-py']
import conversion
conversion.get_model_class('LlamaForCausalLM')
known = conversion.get_model_class
def without_further(architecture, *rest):
    kind = known(architecture, *rest)
    kind.no_mtp = True
    return kind
conversion.get_model_class = without_further
sys.argv = [sys.argv[1] + '/convert_lora_to_gguf.py'] + sys.argv[2:]
runpy.run_path(sys.argv[0], run_name='__main__')
"""


def convert(llama_cpp, arguments):
    subprocess.run([sys.executable, '-c', CONVERTER, str(llama_cpp)] + arguments, check=True)


def base_model(name, originals):
    """The model whose logits are in the folder; its seed depends on how many models there were when it was written."""
    kind, configuration = write_originals.MODELS[name]
    settings = configuration()
    settings._attn_implementation = 'eager'
    wanted = numpy.load(originals / f'{name}.npy')
    for seed in range(1, 2 * len(write_originals.MODELS)):
        model = getattr(transformers, kind)(settings).float().eval()
        write_originals.random_weights(model, seed)
        with torch.no_grad():
            logits = model(torch.tensor([write_originals.tokens()])).logits[0].float().numpy()
        if numpy.abs(logits - wanted).max() < 1e-4:
            return model
    raise SystemExit(f'no seed gives the logits of {originals / name}.npy')


def write(name, options):
    model = base_model(name, options.folder.parent / 'originals')
    modules, ranks, outtype = ADAPTERS[name]
    with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(base)
        adapted = peft.get_peft_model(model, peft.LoraConfig(
            r=4, lora_alpha=6, target_modules=modules, rank_pattern=ranks, lora_dropout=0.0, task_type='CAUSAL_LM'))
        random = torch.Generator().manual_seed(sorted(ADAPTERS).index(name) + 101)
        count = 0
        for parameter_name, weight in adapted.named_parameters():
            if '.lora_A.' not in parameter_name and '.lora_B.' not in parameter_name:
                continue
            value = torch.randn(weight.shape, generator=random) / weight.shape[-1] ** 0.5
            weight.data = (0.5 * value).to(TYPES[outtype]).float()
            count += 1
        adapted.eval()
        with torch.no_grad():
            tokens = torch.tensor([write_originals.tokens()])
            logits = adapted(tokens).logits[0].float().numpy()
            with adapted.disable_adapter():
                without = adapted(tokens).logits[0].float().numpy()
        adapted.save_pretrained(saved)
        convert(options.llama_cpp, ['--base', base, '--outtype', outtype, '--outfile',
                                    str(options.folder / f'{name}.gguf'), saved])
    numpy.save(options.folder / f'{name}.npy', logits.astype(numpy.float32))
    print(name, count // 2, 'matrices', (options.folder / f'{name}.gguf').stat().st_size,
          f'logits of deviation {logits.std():.3g}, without {without.std():.3g}, apart {(logits - without).std():.3g}',
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('llama_cpp', type=pathlib.Path)
    parser.add_argument('folder', type=pathlib.Path)
    parser.add_argument('names', nargs='*', default=sorted(ADAPTERS))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        write(name, options)


if __name__ == '__main__':
    main()
