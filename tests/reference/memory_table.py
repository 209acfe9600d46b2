#!/usr/bin/env python3
"""Prints the table of docs/models.md: what the caches of well-known models take, of the headers beside this file.

memory_table.py KVASIR
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import header_file

CONTEXT = 32768
BATCH = 512  # llama.cpp's tokens of a pass (--ubatch-size)
KNOWN = {'count': '', 'copy': '', 'defaults': '', 'memory': ' \u2020'}


def ask(kvasir, *words):
    done = subprocess.run([kvasir, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def mib(count):
    return f'{count / 2**20:,.1f}' if count else '-'


def llama_cpp_bytes(layers):
    """Cells of 16-bit keys and values by llama.cpp's rule (src/llama-kv-cache-iswa.cpp), and states."""
    total = layers['kv_bytes_per_token'] * CONTEXT + layers['state_bytes']
    for group in layers['windows']:
        cells = min(CONTEXT, (group['window'] + BATCH + 255) // 256 * 256)
        total += cells * group['layers'] * group['kv_heads'] * group['head_dim'] * 4
    return total


def main():
    kvasir = sys.argv[1]
    print('| model | KV bytes a token | windows, MiB | states, MiB | `plan` at 32,768, MiB | llama.cpp, computed, MiB |')
    print('|---|---|---|---|---|---|')
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
            planned = ask(kvasir, 'plan', '--json', '--ctx', str(CONTEXT), '--kv', 'full', path)['kv_bytes']
            mark = ' \u2021' if trained < CONTEXT else ''
            print(f'| {name}{KNOWN[header["known"]]}{mark} | {layers["kv_bytes_per_token"]:,} '
                  f'| {mib(sum(group["bytes_max"] for group in layers["windows"]))} | {mib(layers["state_bytes"])} '
                  f'| {mib(planned)} | {mib(llama_cpp_bytes(layers))} |')


if __name__ == '__main__':
    main()
