#!/usr/bin/env python3
"""Checks that the links between the pages below a folder lead somewhere: to a file or folder below it, and after a `#` to a
heading of that page.

    scripts/check-links.py FOLDER [PAGE ...]

Without names of pages all of the folder's are checked.
"""

import re
import sys
from pathlib import Path

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names by which links reach the headings of a page, as GitHub makes them."""
    names: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        count = 1
        while (numbered := name if count == 1 else f"{name}-{count - 1}") in names:
            count += 1
        names.add(numbered)
    return names


folder = Path(sys.argv[1]).resolve()
pages = [folder / name for name in sys.argv[2:]] or sorted(folder.rglob("*.md"))
dead, links = [], 0
for page in pages:
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        links += 1
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        inside = target == folder or folder in target.parents
        if not (inside and target.exists() and (not heading or heading in anchors(target))):
            dead.append(f"{page.relative_to(folder)}: {link}")
if dead or not links:
    sys.exit("\n".join([*dead, f"check-links: {len(dead)} of {links} links lead nowhere"]))
print(f"check-links: {links} links on {len(pages)} pages")
