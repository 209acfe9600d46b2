#!/usr/bin/env python3
"""Includes follow the declared direction of dependencies.

include_direction.py SOURCE_DIR

A file of src/MODULE may include its own module and those in the closure of the DEPENDS of its kvasir_module(...) line;
cli, which declares none, may include all. What lies in backend/cpu is for those who choose a backend. Public headers include the standard library and each other.
"""
import pathlib
import re
import sys

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
MODULE = re.compile(r'kvasir_module\s*\(\s*(\w+)([^)]*)\)')
WORDS = {'SOURCES', 'DEPENDS'}

# The rooms of the engine, from below.
ROOMS = ['offload', 'runtime', 'sequence', 'planning', 'scheduler', 'prefix_store', 'session', 'requests', 'engine']
UPPER = {'prefix', *ROOMS}
# What reads a model, and what makes text of tokens.
READS_MODELS = {'gguf', 'model'}
TEXTS = {'text', 'jinja', 'chat', 'dialogue', 'generation'}


def above(room):
    return set(ROOMS[ROOMS.index(room) + 1:])


# Closures that would allow these are wrong themselves, whatever is declared.
NEVER = {
    'base': {'tensor', 'tiers', 'backend', 'kv', 'retention'} | READS_MODELS | TEXTS | UPPER,
    'backend': {'kv', 'retention'} | READS_MODELS | TEXTS | UPPER,
    'kv': {'retention'} | READS_MODELS | TEXTS | UPPER,
    'retention': READS_MODELS | TEXTS | UPPER,
    'model': {'kv', 'retention', 'generation'} | UPPER,
    'text': {'chat', 'dialogue', 'generation', 'backend', 'kv'} | READS_MODELS | UPPER,
    'jinja': {'text', 'chat', 'dialogue', 'generation', 'backend', 'kv', 'retention'} | READS_MODELS | UPPER,
    'chat': {'dialogue', 'generation', 'backend', 'kv', 'retention'} | READS_MODELS | UPPER,
    'dialogue': {'generation', 'backend', 'kv', 'retention'} | READS_MODELS | UPPER,
    'generation': {'chat', 'dialogue', 'backend', 'kv', 'retention'} | READS_MODELS | UPPER,
    'prefix': {'retention'} | READS_MODELS | TEXTS | set(ROOMS),
    'offload': {'prefix'} | READS_MODELS | TEXTS | above('offload'),
    'runtime': {'prefix', 'retention', 'generation'} | above('runtime'),
    'sequence': {'prefix', 'tiers'} | READS_MODELS | TEXTS | above('sequence'),
    'planning': {'prefix', 'tiers', 'runtime'} | READS_MODELS | TEXTS | above('planning'),
    'scheduler': {'prefix', 'tiers', 'backend', 'kv', 'offload', 'text', 'chat'} | READS_MODELS | above('scheduler'),
    'prefix_store': {'backend', 'planning', 'scheduler', 'offload'} | READS_MODELS | TEXTS | above('prefix_store'),
    'session': {'prefix', 'prefix_store', 'tiers', 'backend', 'offload'} | READS_MODELS | above('session'),
    'requests': {'backend', 'offload'} | READS_MODELS | above('requests'),
    'engine': {'backend', 'kv'} | READS_MODELS | TEXTS,
    'eval': {'prefix', *above('planning')},
    'server': {'kv', 'backend', 'tiers'} | READS_MODELS | TEXTS | UPPER,
}

# Only those who choose a backend know one: what lies below backend/cpu is its own.
MAY_NAME_A_BACKEND = {'backend', 'runtime', 'cli'}

# Libraries that only these know.
MAY_INCLUDE = {'nlohmann': {'base', 'cli', 'dialogue', 'grammar', 'harness', 'hub', 'jinja', 'report', 'server', 'tasks'}}


def declared(src):
    """Module -> the modules of its DEPENDS."""
    depends = {}
    for lists in sorted(src.glob('*/CMakeLists.txt')):
        text = re.sub(r'#[^\n]*', '', lists.read_text())
        for name, arguments in MODULE.findall(text):
            words = arguments.split()
            after = words[words.index('DEPENDS') + 1:] if 'DEPENDS' in words else []
            depends[name] = [word for word in after if word not in WORDS]
            if name != lists.parent.name:
                sys.exit(f'{lists}: module {name} lives in folder {lists.parent.name}')
    return depends


def closure(depends, module, trail=()):
    if module in trail:
        sys.exit(f'modules depend on each other in a circle: {" -> ".join(trail + (module,))}')
    reached = {module}
    for other in depends[module]:
        if other not in depends:
            sys.exit(f'module {module} depends on {other}, which does not exist')
        reached |= closure(depends, other, trail + (module,))
    return reached


def sources(folder):
    return sorted(path for path in folder.rglob('*') if path.suffix in {'.h', '.cc', '.in', '.cu', '.inc'})


def main():
    root = pathlib.Path(sys.argv[1])
    src = root / 'src'
    depends = declared(src)
    if unknown := ({*NEVER} | {name for names in NEVER.values() for name in names}) - {*depends}:
        sys.exit(f'this test has rules for modules that there are not: {", ".join(sorted(unknown))}')
    if len(depends) < 10:
        sys.exit(f'only {len(depends)} modules found below {src}: kvasir_module lines no longer parse')
    wrong = []
    seen = 0
    for folder in sorted(path for path in src.iterdir() if path.is_dir()):
        module = folder.name
        if module in depends:
            allowed = closure(depends, module) - NEVER.get(module, set())
        elif module == 'cli':
            allowed = set(depends) | {'cli'}
        else:
            wrong.append(f'{folder}: no kvasir_module line')
            continue
        for path in sources(folder):
            text = path.read_text()
            for kind, header in INCLUDE.findall(text):
                seen += 1
                where = f'{path.relative_to(root)}: #include "{header}"'
                first = header.split('/')[0]
                if kind == '<':
                    if first in depends or first == 'cli':
                        wrong.append(f'{where}: a header of the project, in angle brackets')
                    if module not in MAY_INCLUDE.get(first, {module}):
                        wrong.append(f'{where}: only {", ".join(sorted(MAY_INCLUDE[first]))} know it')
                elif '/' not in header or '..' in header or not ((src / header).is_file() or first == 'kvasir'):
                    wrong.append(f'{where}: name it "folder/file.h", from src/')
                elif header.startswith('backend/cpu/') and module not in MAY_NAME_A_BACKEND:
                    wrong.append(f'{where}: the operations are in "backend/backend.h"')
                elif first != 'kvasir' and first not in allowed:
                    wrong.append(f'{where}: {module} may include {", ".join(sorted(allowed))}')
    for path in sources(root / 'include'):
        for kind, header in INCLUDE.findall(path.read_text()):
            seen += 1
            where = f'{path.relative_to(root)}: #include {header}'
            if kind == '"' and not header.startswith('kvasir/'):
                wrong.append(f'{where}: public headers include "kvasir/..." and the standard library')
            if kind == '<' and not re.fullmatch(r'[a-z_]+', header):
                wrong.append(f'{where}: not a header of the C++ standard library')
    if seen < 100:
        sys.exit(f'only {seen} includes found: this test no longer reads them')
    for line in wrong:
        print(line)
    print(f'{seen} includes in {len(depends) + 1} modules, {len(wrong)} against the direction')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
