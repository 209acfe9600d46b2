#!/usr/bin/env python3
"""Every folder of sources says what each of its files is for, and is small enough to be read.

readmes.py SOURCE_DIR

A folder below src/ that holds .h or .cc files has a README.md, which names each unit: a header with its source, by the
name of either or without an ending, in backticks. A folder has at most MOST such files, but for the lists of LISTS.
"""
import pathlib
import re
import sys

MOST = 32
# One file for each policy: whoever reads one needs none of its siblings.
LISTS = {'retention'}


def main():
    root = pathlib.Path(sys.argv[1])
    src = root / 'src'
    wrong = []
    folders = units = 0
    for folder in sorted([src, *(path for path in src.rglob('*') if path.is_dir())]):
        files = sorted(path for path in folder.iterdir() if path.suffix in {'.h', '.cc'})
        if not files:
            continue
        folders += 1
        name = str(folder.relative_to(src))
        if len(files) > MOST and name not in LISTS:
            wrong.append(f'src/{name} holds {len(files)} source files, more than {MOST}: divide it')
        readme = folder / 'README.md'
        if not readme.is_file():
            wrong.append(f'src/{name} has no README.md')
            continue
        named = {re.sub(r'\.(h|cc)$', '', word) for word in re.findall(r'`([^`\n]+)`', readme.read_text())}
        for stem in sorted({path.stem for path in files}):
            units += 1
            if stem not in named:
                wrong.append(f'src/{name}/README.md does not name `{stem}`')
        for word in re.findall(r'`([a-z0-9_]+\.(?:h|cc))`', readme.read_text()):
            if not (folder / word).is_file() and not list(src.rglob(word)):
                wrong.append(f'src/{name}/README.md names `{word}`, which does not exist')
    if folders < 20 or units < 200:
        sys.exit(f'only {folders} folders with {units} units found: this test no longer reads them')
    for line in wrong:
        print(line)
    print(f'{units} units in {folders} folders, {len(wrong)} complaints')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
