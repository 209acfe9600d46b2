"""Checks that every link of every page to a file of this repository leads there, and to a heading that exists.

Usage: links_check.py SOURCE_DIR
"""

import pathlib
import re
import sys

SKIPPED = {"build", "node_modules", "vendor", "shared", ".git"}


def headings(page):
    """Returns the anchors that GitHub makes of a page's headings."""
    seen = {}
    anchors = set()
    fenced = False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            fenced = not fenced
        heading = re.match(r"#{1,6} (.*)", line)
        if not heading or fenced:
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if anchor in seen else anchor)
        seen[anchor] = seen.get(anchor, 0) + 1
    return anchors


def main():
    source = pathlib.Path(sys.argv[1]).resolve()
    pages = [page for page in source.rglob("*.md") if not SKIPPED & set(page.relative_to(source).parts)]
    links = broken = 0
    for page in pages:
        for match in re.finditer(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = match[1].partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            links += 1
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or anchor and target.suffix == ".md" and anchor not in headings(target):
                broken += 1
                print(f"{page.relative_to(source)}: {match[1]} leads nowhere")
    print(f"{len(pages)} pages, {links} links, {broken} broken")
    if broken or links < 100:
        sys.exit(1)


if __name__ == "__main__":
    main()
