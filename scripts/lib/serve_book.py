"""Serves the book and builds it again when one of its files changes: serve_book.py MDBOOK [OPTIONS], for book.sh."""

import argparse
import functools
import http.server
import os
import pathlib
import subprocess
import sys
import threading
import time
import webbrowser

sys.dont_write_bytecode = True
from browser import Silent  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "book"
PAUSE = 0.5  # s between two looks at the files


def main():
    parser = argparse.ArgumentParser(prog="scripts/book.sh")
    parser.add_argument("mdbook", help=argparse.SUPPRESS)
    parser.add_argument("-p", "--port", type=int, default=3000, help="0 takes a free one (default: 3000)")
    parser.add_argument("-n", "--hostname", default="localhost", help="where it can be reached; 0.0.0.0 for everywhere (default: localhost)")
    parser.add_argument("-o", "--open", action="store_true", help="open it in a browser")
    options = parser.parse_args()
    if build(options.mdbook):
        return 1
    handler = functools.partial(Silent, directory=ROOT / "target/book")
    try:
        server = http.server.ThreadingHTTPServer((options.hostname, options.port), handler)
    except OSError as error:
        sys.exit(f"book: cannot serve at {options.hostname}:{options.port}: {error.strerror}; --port takes another port, --hostname another address")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://{options.hostname}:{server.server_port}/"
    print(f"book: {address}, until Ctrl-C; a page that changes is built again", flush=True)
    if options.open:
        webbrowser.open(address)
    follow(options.mdbook)


def build(mdbook):
    return subprocess.run([mdbook, "build", ROOT / "book"]).returncode


def follow(mdbook):
    seen = stamps()
    while True:
        time.sleep(PAUSE)
        now = stamps()
        if now != seen:
            seen = now
            build(mdbook)


def stamps():
    """The times of all files; one that vanishes meanwhile is left out."""
    found = {}
    for folder, _, names in os.walk(SOURCE):
        for path in (os.path.join(folder, name) for name in names):
            try:
                found[path] = os.stat(path).st_mtime_ns
            except FileNotFoundError:
                continue
    return found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
