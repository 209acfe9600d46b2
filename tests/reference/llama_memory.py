#!/usr/bin/env python3
"""Prints what llama.cpp allocates for one sequence of CONTEXT tokens beside the weights, in MiB: caches, states, work.

llama_memory.py CONTEXT FILE.gguf

Makes a context of the file, as llama-server does with its default options for one slot, and adds up the sizes of the buffers that
llama.cpp says it has allocated. Prints one JSON object, or null where llama.cpp makes no context. Needs llama-cpp-python.
"""
import ctypes
import json
import re
import sys

import llama_cpp.llama_cpp as llama

SIZE = re.compile(r'(KV|RS|compute) buffer size = +([0-9.]+) MiB')


def measure(path, context):
    """MiB by kind: KV, RS (states), compute."""
    sizes = {'KV': 0.0, 'RS': 0.0, 'compute': 0.0}

    @llama.llama_log_callback
    def hear(_level, text, _data):
        for kind, size in SIZE.findall(text.decode(errors='replace')):
            sizes[kind] += float(size)

    llama.llama_log_set(hear, ctypes.c_void_p(0))
    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    if not model:
        return None
    options = llama.llama_context_default_params()
    options.n_ctx = context
    options.n_seq_max = 1
    options.swa_full = False
    made = llama.llama_init_from_model(model, options)
    if made:
        llama.llama_free(made)
    llama.llama_model_free(model)
    return sizes if made else None


if __name__ == '__main__':
    print(json.dumps(measure(sys.argv[2], int(sys.argv[1]))))
