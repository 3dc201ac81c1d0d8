#!/usr/bin/env python3
"""What a release needs beside the builds. .github/workflows/release.yml calls it, and docs/RELEASING.md says when.

    release.py check [TAG]       the version is the same everywhere; with a tag also that one, and the changelog has a date. Prints it
    release.py collect IN OUT    the files of a release, with one SHA256SUMS, and the libraries and programs by architecture, for the images
    release.py draft TAG DIR     a release page that is not public, with the files of DIR; can be repeated
    release.py publish TAG       makes it public
    release.py npm FILE          publishes a package, unless that version is there already
    release.py crates            likewise
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib

os.chdir(pathlib.Path(__file__).resolve().parent.parent)
ARCHITECTURES = {"x86_64": ("amd64", b"\x3e"), "aarch64": ("arm64", b"\xb7")}
LIBRARIES = {"gnu": "glibc", "musl": "musl"}


def toml(name):
    return tomllib.loads(pathlib.Path(name).read_text())


def locked(name, package):
    return next(one["version"] for one in toml(name)["package"] if one["name"] == package)


def entries():
    """The headings of the changelog with what stands below them."""
    parts = re.split(r"^## (.*)\n", pathlib.Path("CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def check(tag=None):
    chart = pathlib.Path("deploy/helm/redis-rl-envoy/Chart.yaml").read_text()
    lock = json.loads(pathlib.Path("clients/node/package-lock.json").read_text())
    heading = entries()[0][0]
    version = toml("Cargo.toml")["package"]["version"]
    found = {
        "Cargo.lock": locked("Cargo.lock", "redis-rl"),
        "clients/python/pyproject.toml": toml("clients/python/pyproject.toml")["project"]["version"],
        "clients/node/package.json": json.loads(pathlib.Path("clients/node/package.json").read_text())["version"],
        "clients/node/package-lock.json": lock["version"],
        "clients/node/package-lock.json, in its list of packages,": lock["packages"][""]["version"],
        "clients/rust/Cargo.toml": toml("clients/rust/Cargo.toml")["package"]["version"],
        "clients/rust/Cargo.lock": locked("clients/rust/Cargo.lock", "redis-rl-client"),
        "the subject in clients/faults": locked("clients/faults/subjects/rust/Cargo.lock", "redis-rl-client"),
        "clients/java/pom.xml": re.search(r"<version>(.*?)</version>", pathlib.Path("clients/java/pom.xml").read_text())[1],
        "envoy/Cargo.toml": toml("envoy/Cargo.toml")["package"]["version"],
        "envoy/Cargo.lock": locked("envoy/Cargo.lock", "redis-rl-envoy"),
        "the chart": re.search(r"^version: (.*)$", chart, re.MULTILINE)[1],
        "the chart's appVersion": re.search(r'^appVersion: "?([^"\n]*)', chart, re.MULTILINE)[1],
        "the first entry of CHANGELOG.md": heading.partition(",")[0],
    }
    wrong = [f"{where} has version {other}, Cargo.toml has {version}" for where, other in found.items() if other != version]
    if tag is not None and tag != f"v{version}":
        wrong.append(f"the tag is {tag}: it must be v{version}")
    if tag is not None and not re.search(r", \d{4}-\d\d-\d\d$", heading):
        wrong.append(f"the first entry of CHANGELOG.md is '{heading}': it must end in the date of the release")
    if wrong:
        sys.exit("\n".join(wrong))
    return version


def verify(folder):
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=folder, check=True)


def extract(tarballs, name, target, machine):
    """The one file of this name in the tarballs, which must be a program or library for this machine."""
    found = []
    for path in tarballs:
        with tarfile.open(path) as tarball:
            found += [tarball.extractfile(one).read() for one in tarball if pathlib.PurePath(one.name).name == name]
    if len(found) != 1:
        sys.exit(f"{len(found)} files {name} in {[str(path) for path in tarballs]}, not one")
    if found[0][:6] != b"\x7fELF\x02\x01" or found[0][18:19] != machine:
        sys.exit(f"{name} of {tarballs[0].parent} is for another machine")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(found[0])
    target.chmod(0o755)  # A server refuses a module without the execute bit.


def collect(source, target):
    source, target = pathlib.Path(source), pathlib.Path(target)
    assets = target / "assets"
    assets.mkdir(parents=True)
    for folder in sorted(path for path in source.iterdir() if path.is_dir()):
        if (folder / "SHA256SUMS").exists():
            verify(folder)
        for file in sorted(path for path in folder.iterdir() if path.is_file() and path.name != "SHA256SUMS"):
            if (assets / file.name).exists() and (assets / file.name).read_bytes() != file.read_bytes():
                sys.exit(f"{file.name} is in several folders, with different contents")
            shutil.copy2(file, assets / file.name)
    for triple, (arch, machine) in ARCHITECTURES.items():
        for suffix, libc in LIBRARIES.items():
            tarballs = sorted((source / f"{triple}-unknown-linux-{suffix}").glob("*.tar.*"))
            extract(tarballs, "libredis_rl.so", target / "library" / arch / libc / "libredis_rl.so", machine)
            if suffix == "gnu":
                extract(tarballs, "redis-rl-envoy", target / "service" / arch / "redis-rl-envoy", machine)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(assets.iterdir())]
    (assets / "SHA256SUMS").write_text("".join(sums))


def is_draft(tag):
    """Whether the release is a draft; None without one."""
    shown = subprocess.run(["gh", "release", "view", tag, "--json", "isDraft"], capture_output=True, text=True)
    return json.loads(shown.stdout)["isDraft"] if shown.returncode == 0 else None


def draft(tag, folder):
    verify(folder)
    state = is_draft(tag)
    if state is False:
        sys.exit(f"{tag} is public, and its files stay")
    if state is None:
        create = ["gh", "release", "create", tag, "--draft", "--verify-tag", "--title", f"redis-rl {tag[1:]}"]
        (notes,) = [text.strip() for heading, text in entries() if heading.partition(",")[0] == tag[1:]]
        subprocess.run([*create, "--notes-file", "-"], input=notes, text=True, check=True)
    subprocess.run(["gh", "release", "upload", tag, "--clobber", *map(str, sorted(pathlib.Path(folder).iterdir()))], check=True)


def publish(tag):
    if is_draft(tag) is not False:
        subprocess.run(["gh", "release", "edit", tag, "--draft=false", "--latest"], check=True)


def npm(file):
    version = check()
    shown = subprocess.run(["npm", "view", f"redis-rl@{version}", "version"], capture_output=True, text=True)
    if shown.stdout.strip() != version:
        subprocess.run(["npm", "publish", file, "--access", "public", "--provenance"], check=True)


def crates():
    name = f"redis-rl-client@{check()}"
    there = subprocess.run(["cargo", "info", "--quiet", "--registry", "crates-io", name], capture_output=True, cwd="clients/rust")
    if there.returncode != 0:  # cargo packs the tree of the tag again, which scripts/build-clients.sh has built in another job.
        subprocess.run(["cargo", "publish", "--locked", "--no-verify"], cwd="clients/rust", check=True)


COMMANDS = {one.__name__: one for one in (check, collect, draft, publish, npm, crates)}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    told = COMMANDS[sys.argv[1]](*(argument for argument in sys.argv[2:] if argument))
    if told is not None:
        print(told)
