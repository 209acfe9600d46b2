#!/usr/bin/env python3
"""Prints the table of docs/models.md: what the caches of well-known models take, of the headers beside this file.

memory_table.py KVASIR [PYTHON]

With a Python that has llama-cpp-python, also what llama.cpp says it allocates (llama_memory.py).
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import header_file

CONTEXT = 32768
HERE = pathlib.Path(__file__).resolve().parent
KNOWN = {'count': '', 'copy': '', 'defaults': '', 'memory': ' \u2020'}


def ask(kvasir, *words):
    done = subprocess.run([kvasir, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def mib(count):
    return f'{count / 2**20:,.1f}' if count else '-'


def llama_cpp(python, path):
    """Bytes of caches and states, and of these with the memory to work in; Nones where llama.cpp makes no context."""
    if python is None:
        return None, None
    done = subprocess.run([python, HERE / 'llama_memory.py', str(CONTEXT), path], capture_output=True, text=True)
    found = json.loads(done.stdout) if done.returncode == 0 else None
    if found is None:
        return None, None
    caches = (found['KV'] + found['RS']) * 2**20
    return caches, caches + found['compute'] * 2**20


def main():
    kvasir = sys.argv[1]
    python = sys.argv[2] if len(sys.argv) > 2 else None
    print('| model | KV bytes a token | windows | states | caches | of llama.cpp | beside the weights | of llama.cpp |')
    print('|---|---|---|---|---|---|---|---|')
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'header.gguf'
        for name in header_file.names():
            header = header_file.load(name)
            # Room for the context, also of models that were trained for less.
            context = f"{header['keys']['general.architecture'][1]}.context_length"
            trained = header['keys'][context][1]
            header['keys'][context][1] = max(trained, CONTEXT)
            if header['keys']['general.architecture'][1] == 'gpt2':  # one learned position for each token
                continue
            header_file.write(header, path)
            found = ask(kvasir, 'info', '--json', path)
            if not found['runs']:
                print(f'| {name} | {found["why_not"][:60]} | | | | |')
                continue
            layers = found['layers']
            plan = ask(kvasir, 'plan', '--json', '--ctx', str(CONTEXT), '--kv', 'full', path)
            caches, beside = llama_cpp(python, path)
            mark = ' \u2021' if trained < CONTEXT else ''
            print(f'| {name}{KNOWN[header["known"]]}{mark} | {layers["kv_bytes_per_token"]:,} '
                  f'| {mib(sum(group["bytes_max"] for group in layers["windows"]))} | {mib(layers["state_bytes"])} '
                  f'| {mib(plan["kv_bytes"])} | {mib(caches)} | {mib(plan["kv_bytes"] + plan["workspace_bytes"])} | {mib(beside)} |')


if __name__ == '__main__':
    main()
