"""No two headers of src/ and include/ define classes of one name in one namespace: the linker would take the members of either
for both, without a word.

    class_names.py ROOT
"""
import pathlib
import re
import sys

OPENING = re.compile(r'^(?:inline )?namespace ([\w:]*)\s*\{')
CLASS = re.compile(r'^(?:template <.*> )?(?:class|struct|enum class|union)(?: \[\[\w+\]\])?(?: alignas\(\w+\))? (\w+)(?: final)?(?: :.*)?(?: \{|$)')


def classes(path):
    """Yields the namespace and name of each class at the outermost level of a header."""
    spaces = []
    for line in path.read_text().splitlines():
        if found := OPENING.match(line):
            spaces.append(found[1])
        elif line.startswith('}  // namespace'):
            spaces.pop()
        elif '' not in spaces and (found := CLASS.match(line)):  # those of unnamed namespaces belong to their file
            yield '::'.join(spaces), found[1]


def main(root):
    places, complaints = {}, 0
    for path in sorted([*root.glob('src/**/*.h'), *root.glob('include/**/*.h')]):
        for space, name in classes(path):
            places.setdefault((space, name), []).append(path.relative_to(root))
    for (space, name), paths in places.items():
        if len(paths) > 1:
            complaints += 1
            print(f'{space}::{name} is defined in {" and ".join(map(str, paths))}')
    print(f'{len(places)} classes, {complaints} complaints')
    return 1 if complaints or len(places) < 100 else 0


if __name__ == '__main__':
    sys.exit(main(pathlib.Path(sys.argv[1])))
