"""The module of the book's figures that move: crates/figures as WebAssembly, in a script that a page can load from a folder, too."""

import base64
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = "wasm32-unknown-unknown"
FOLDER = ROOT / "target" / "figures"
MODULE = ROOT / "book" / "src" / "figures-module.js"
SECONDS = 900
# Small: every reader fetches it.
SMALL = {"OPT_LEVEL": "z", "LTO": "fat", "CODEGEN_UNITS": "1", "PANIC": "abort", "STRIP": "true"}


def missing():
    """Why the module cannot be built here; None if it can."""
    if not shutil.which("cargo"):
        return "cargo is not on PATH"
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    if not os.path.isdir(f"{sysroot}/lib/rustlib/{TARGET}"):
        return f"Rust has no {TARGET} here (scripts/setup.sh --book-tools installs it)"
    return None


def build():
    """Writes the module into the book's sources, where mdBook finds it. Without it pages keep their pictures."""
    if why := missing():
        print(f"figures: pages keep their pictures, which do not move: {why}", file=sys.stderr)
        return
    # The caller's flags are for another target.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RUSTFLAGS", "CARGO_ENCODED", "RUSTC_W"))}
    environment |= {f"CARGO_PROFILE_RELEASE_{name}": value for name, value in SMALL.items()}
    command = ["cargo", "build", "--quiet", "--locked", "--release", "--package=lockstep-figures", "--lib", f"--target={TARGET}", f"--target-dir={FOLDER}"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=SECONDS, stdout=sys.stderr)
    module = (FOLDER / TARGET / "release" / "lockstep_figures.wasm").read_bytes()
    text = f'window.lockstepFigures = "{base64.b64encode(module).decode()}";\n'
    # mdBook builds again when a source changes.
    if not MODULE.exists() or MODULE.read_text() != text:
        MODULE.write_text(text)
