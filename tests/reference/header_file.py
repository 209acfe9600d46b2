"""Reads the headers of tests/reference/headers, and writes them as GGUF files whose weights are holes."""
import json
import pathlib
import struct

FOLDER = pathlib.Path(__file__).parent / 'headers'
FORMATS = {'uint8': 'B', 'int8': 'b', 'uint16': 'H', 'int16': 'h', 'uint32': 'I', 'int32': 'i', 'float32': 'f',
           'bool': '?', 'string': None, 'array': None, 'uint64': 'Q', 'int64': 'q', 'float64': 'd'}
KINDS = {name: number for number, name in enumerate(FORMATS)}
TYPES = {'F32': (0, 1, 4), 'F16': (1, 1, 2), 'MXFP4': (39, 32, 17)}  # number, elements of a block, bytes of a block
ALIGNMENT = 32


def names():
    return sorted(path.stem for path in FOLDER.glob('*.json'))


def load(name):
    return json.loads((FOLDER / f'{name}.json').read_text())


def layers_of(ranges):
    for part in ranges.split(','):
        first, _, last = part.partition('-')
        yield from range(int(first), int(last or first) + 1)


def tensors_of(header):
    """Yields name, type, dims and values (of a tensor that is not made of weights; else none)."""
    for name, kind, dims, ranges, *values in header['tensors']:
        for layer in layers_of(ranges) if ranges else [None]:
            yield name.replace('{}', str(layer)), kind, dims, values[0] if values else []


def string(text):
    data = text.encode()
    return struct.pack('<Q', len(data)) + data


def value(kind, content):
    return string(content) if kind == 'string' else struct.pack('<' + FORMATS[kind], content)


def entry(key, kind, content):
    if not kind.startswith('['):
        return string(key) + struct.pack('<I', KINDS[kind]) + value(kind, content)
    of = kind[1:-1]
    body = b''.join(map(string, content)) if of == 'string' else struct.pack(f'<{len(content)}{FORMATS[of]}', *content)
    return string(key) + struct.pack('<IIQ', KINDS['array'], KINDS[of], len(content)) + body


def vocabulary(header):
    """Keys of a vocabulary of the model's size and kind, whose pieces mean nothing."""
    model, pre = header['tokenizer']
    size = next(dims[1] for name, _, dims, _ in tensors_of(header) if name == 'token_embd.weight')
    keys = [('model', 'string', model), ('pre', 'string', pre),
            ('bos_token_id', 'uint32', 1), ('eos_token_id', 'uint32', 2)]
    pieces = ['<unk>', '<s>', '</s>'] + [f'<0x{byte:02X}>' for byte in range(256)]
    kinds = [2, 3, 3] + 256 * [6]
    pieces += [f'p{piece}' for piece in range(size - len(pieces))]
    kinds += [1] * (size - len(kinds))
    keys += [('tokens', '[string]', pieces), ('token_type', '[int32]', kinds)]
    if model != 'gpt2':
        keys.append(('scores', '[float32]', [0.0] * size))
    if model != 'llama':
        keys.append(('merges', '[string]', ['p 1']))
    return [(f'tokenizer.ggml.{key}', kind, content) for key, kind, content in keys]


def write(header, path, without=()):
    """Writes the file. `without`: names of keys and tensors to leave out."""
    keys = [(key, kind, content) for key, (kind, content) in header['keys'].items()] + vocabulary(header)
    keys = [key for key in keys if key[0] not in without]
    tensors = [tensor for tensor in tensors_of(header) if tensor[0] not in without]
    infos, values, offset = [], [], 0
    for name, kind, dims, numbers in tensors:
        number, elements, size = TYPES[kind]
        total = size
        for dim in dims:
            total *= dim
        infos.append(string(name) + struct.pack(f'<I{len(dims)}QIQ', len(dims), *dims, number, offset))
        if numbers:
            values.append((offset, struct.pack(f'<{len(numbers)}f', *numbers)))
        offset += (total // elements + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    data = b'GGUF' + struct.pack('<IQQ', 3, len(tensors), len(keys))
    data += b''.join(entry(*key) for key in keys) + b''.join(infos)
    data += b'\0' * (-len(data) % ALIGNMENT)
    with open(path, 'wb') as file:
        file.write(data)
        for begin, content in values:
            file.seek(len(data) + begin)
            file.write(content)
        file.truncate(len(data) + offset)
