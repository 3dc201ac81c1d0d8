#!/usr/bin/env python3
"""Prints the licences of the crates that are linked into the library or the service, for the packages.

    cargo metadata ... | packaging/third-party.py NAME@VERSION ...

Standard input is what `cargo metadata` prints; the arguments are the crates. A crate without a licence file of its own
gets the line of its manifest.
"""

import json
import pathlib
import sys


def main() -> None:
    packages = {f"{package['name']}@{package['version']}": package for package in json.load(sys.stdin)["packages"]}
    print("Linked in are these crates, and the standard library of Rust (MIT or Apache-2.0, rust-lang.org).")
    for name in sys.argv[1:]:
        package = packages[name]
        folder = pathlib.Path(package["manifest_path"]).parent
        files = sorted(file for file in folder.iterdir() if file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "UNLICENSE")))
        print(f"\n{'=' * 80}\n{name}: {package['license'] or package['license_file']}")
        for file in files:
            if file.is_file():
                print(f"{'-' * 80}\n{file.name}\n\n{file.read_text().strip()}")


main()
