#!/usr/bin/env python3
"""Packs the crates that others can use, as `cargo publish` does, and builds examples against the packages.

    scripts/check_packages.py [--all] [CRATE...]

Packs them all, and makes each README's example a package of its own outside the checkout, with the dependencies of the README's TOML block
and only the features that these ask for. An example that is built must print what its README shows, in any order of lines. Without
names and without --all, only the examples in QUICK are built, or compiled without being linked. --all also looks for warnings in the
documentation.

Needs cargo, and no network where the checkout has been built. Dependencies that the checkout has compiled with the same features are not
compiled again, so it is quick after the tests.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
CONFIG = ROOT / ".cargo" / "config.toml"
FENCE = re.compile(r"^```([\w,]*)\n(.*?)^```$", re.M | re.S)
# What fits into a test run, and how cargo does it. The launcher's example needs all packed crates but c10d.
QUICK = {"tcpstore": "build", "lockstep-launch": "check"}
SECTION = re.compile(r"^(?=\[)", re.M)


class Fault(Exception):
    """What is wrong with a crate, for its maintainer."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="build and run all examples, and check the documentation: minutes")
    parser.add_argument("crates", nargs="*", metavar="CRATE", help="build and run the examples of these")
    chosen = parser.parse_args()
    try:
        crates = published()
        if unknown := set(chosen.crates) - crates.keys():
            parser.error(f"not published: {', '.join(sorted(unknown))}; published are {', '.join(crates)}")
        full = crates if chosen.all else chosen.crates
        steps = dict.fromkeys(full, "build") or QUICK
        if chosen.all:
            check_documentation(crates)
        with tempfile.TemporaryDirectory(prefix="lockstep_packages_") as folder:
            check_examples(pathlib.Path(folder), crates, steps)
    except Fault as fault:
        sys.exit(f"packages: error: {fault}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"packages: in order ({used.ru_utime + used.ru_stime:.0f} s of processor time)")


def published():
    """The packages of the workspace that may be published, by name."""
    found = json.loads(cargo(ROOT, "metadata", "--no-deps", "--format-version=1"))
    return {package["name"]: package for package in found["packages"] if package["publish"] is None}


def check_documentation(crates):
    cargo(ROOT, "doc", "--no-deps", *(f"--package={name}" for name in crates), RUSTDOCFLAGS="-D warnings")
    print(f"packages: the documentation of {len(crates)} crates has no warning", flush=True)


def check_examples(folder, crates, steps):
    pack(folder, crates)
    print(f"packages: packed {', '.join(crates)}", flush=True)
    examples = {name: example(crates[name]) for name in crates}
    write_workspace(folder, crates, examples)
    for name, step in steps.items():
        _, _, words, shown = examples[name]
        cargo(folder, step, f"--package=example-{name}")
        if step == "build":
            compare(name, run(folder, name, words), shown)
        print(f"packages: {name}: the README's example {'prints what it shows' if step == 'build' else 'compiles'}", flush=True)


def pack(folder, crates):
    """Packs all crates into the checkout's target folder and unpacks them in `folder`."""
    cargo(ROOT, "package", "--no-verify", "--allow-dirty", *(f"--package={name}" for name in crates))
    for name, package in crates.items():
        packed = f"{name}-{package['version']}"
        with tarfile.open(TARGET / "package" / f"{packed}.crate") as archive:
            archive.extractall(folder, filter=fresh)
        for needed in "README.md", "LICENSE-MIT", "LICENSE-APACHE":
            if not (folder / packed / needed).is_file():
                raise Fault(f"the package {packed} has no {needed}")


def fresh(member, path):
    """As of now: cargo compiles what is newer than the last build, and packed files bear one fixed date."""
    return tarfile.data_filter(member, path).replace(mtime=time.time(), deep=False)


def example(package):
    """The example of a crate's README: its dependencies, its code, the arguments that it is run with, and what it prints."""
    blocks = FENCE.findall(pathlib.Path(package["manifest_path"]).with_name("README.md").read_text())
    try:
        manifest = next(text for language, text in blocks if language == "toml")
        at = next(at for at, (language, _) in enumerate(blocks) if language.startswith("rust"))
        language, shown = next(block for block in blocks[at + 1 :] if block[0] in ("text", "console"))
    except StopIteration:
        raise Fault(f"the README of {package['name']} lacks a block of TOML, one of Rust, or what the example prints") from None
    words = []
    if language == "console":
        command, _, shown = shown.partition("\n")
        words = shlex.split(command.removeprefix("$ cargo run -- "))
    return manifest, blocks[at][1], words, shown


def write_workspace(folder, crates, examples):
    """One workspace for all examples, so that they share a lock file; cargo joins features of those packages only that it builds."""
    patches = "".join(f'{name} = {{ path = "{name}-{package["version"]}" }}\n' for name, package in crates.items())
    head = '[workspace]\nresolver = "3"\nmembers = ["example-*"]\n'
    (folder / "Cargo.toml").write_text(f"{head}{profiles(crates)}\n[patch.crates-io]\n{patches}")
    # The versions that the checkout has, so that nothing is fetched.
    shutil.copy(ROOT / "Cargo.lock", folder)
    for name, (manifest, code, _, _) in examples.items():
        source = folder / f"example-{name}" / "src"
        source.mkdir(parents=True)
        head = f'[package]\nname = "example-{name}"\nversion = "0.0.0"\nedition = "2024"\n'
        (source.parent / "Cargo.toml").write_text(head + manifest)
        (source / "main.rs").write_text(code)


def profiles(crates):
    """The checkout's profiles, with which dependencies are compiled already; the packed crates are not optimized."""
    sections = SECTION.split((ROOT / "Cargo.toml").read_text())
    ours = tuple(f"[profile.dev.package.{name}]" for name in crates)
    kept = [section for section in sections if section.startswith("[profile.") and not section.startswith(ours)]
    return "".join(kept) + "".join(f"\n{title}\nopt-level = 0\ndebug = false\n" for title in ours)


def run(folder, name, words):
    command = [TARGET / "debug" / f"example-{name}", *words]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        raise Fault(f"the example of {name} ended with exit code {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def compare(name, printed, shown):
    if sorted(printed.splitlines()) != sorted(shown.splitlines()):
        raise Fault(f"the example of {name} printed\n{printed}but its README shows\n{shown}")


def cargo(folder, *words, **variables):
    """Runs cargo without the network, as in the checkout, and returns its output."""
    toolchain = tomllib.loads((ROOT / "rust-toolchain.toml").read_text())["toolchain"]["channel"]
    env = os.environ | {"CARGO_TARGET_DIR": str(TARGET), "RUSTUP_TOOLCHAIN": toolchain} | variables
    # In the checkout cargo finds the file by itself; given once more, its lists would be twice as long, and all would be compiled again.
    config = [] if folder == ROOT else [f"--config={CONFIG}"]
    command = ["cargo", *config, *words, "--offline"]
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if ended.returncode:
        raise Fault(f"cargo {shlex.join(words)} failed:\n{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    main()
