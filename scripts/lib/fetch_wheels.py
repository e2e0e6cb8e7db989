"""Fetches the wheels that a pip report names, and continues where an earlier, interrupted run stopped.

    python fetch_wheels.py REPORT FOLDER LIST [--quiet]

REPORT is the file of `pip install --dry-run --report`: pip has chosen the files and their hashes, from whatever index the
user configured. Each file is fetched into FOLDER as NAME.part, verified and renamed; LIST gets their paths, one a line.
Exit status: 0 fetched, 1 a file is broken, 3 this way does not work here (the caller lets pip fetch them itself).
Only Python's standard library is used. Authentication and mirrors with redirects to other schemes are left to pip.
"""

import concurrent.futures
import errno
import hashlib
import json
import os
import pathlib
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

STALL_SECONDS = 30
ATTEMPTS = 6
CHUNK_BYTES = 1 << 18
CANNOT = 3


class Wheel:
    """One file to fetch: where from, its SHA-256, its length in bytes once known."""

    def __init__(self, item, folder):
        info = item["download_info"]
        self.url = info["url"]
        archive = info.get("archive_info", {})
        self.sha256 = archive.get("hashes", {}).get("sha256")
        self.path = folder / pathlib.PurePosixPath(urllib.parse.unquote(urllib.parse.urlsplit(self.url).path)).name
        self.part = self.path.with_name(self.path.name + ".part")
        self.size = 0

    def have(self):
        """Bytes that are already on disk."""
        for path in (self.path, self.part):
            if path.exists():
                return path.stat().st_size
        return 0


class Progress:
    """A line that is rewritten on a terminal, a line every five seconds elsewhere."""

    def __init__(self, total, quiet):
        self.total, self.quiet = total, quiet
        self.terminal = sys.stderr.isatty()
        self.started = self.shown = time.monotonic()
        self.fetched = 0

    def show(self, done, last=False):
        now = time.monotonic()
        if self.quiet or self.fetched == 0 or (not last and now - self.shown < (0.2 if self.terminal else 5)):
            return
        self.shown = now
        rate = self.fetched / 1e6 / max(now - self.started, 0.001)
        line = f"set-up: fetched {done / 1e6:.0f} of {self.total / 1e6:.0f} MB, {rate:.1f} MB/s"
        start, end = ("\r", "\x1b[K") if self.terminal else ("", "\n")
        print(f"{start}{line}{end}", end="\n" if last and self.terminal else "", file=sys.stderr, flush=True)


def opener():
    """urllib with the proxies of the environment and the certificates that pip would trust."""
    context = ssl.create_default_context()
    try:
        from pip._vendor import certifi

        context.load_verify_locations(certifi.where())
    except (ImportError, OSError):
        pass
    for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        if os.path.isfile(os.environ.get(name, "")):
            context.load_verify_locations(os.environ[name])
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))


def measure(net, wheel):
    request = urllib.request.Request(wheel.url, method="HEAD")
    with net.open(request, timeout=STALL_SECONDS) as answer:
        wheel.size = int(answer.headers.get("Content-Length") or 0)


def fetch_rest(net, wheel, progress, done_before):
    """Appends what is missing to the .part file; starts over when the server cannot send part of a file."""
    have = wheel.part.stat().st_size if wheel.part.exists() else 0
    if have and have == wheel.size:
        return
    request = urllib.request.Request(wheel.url, headers={"Range": f"bytes={have}-"} if have else {})
    with net.open(request, timeout=STALL_SECONDS) as answer:
        goes_on = have and getattr(answer, "status", None) == 206
        have = have if goes_on else 0
        with wheel.part.open("ab" if goes_on else "wb") as out:
            while chunk := answer.read(CHUNK_BYTES):
                out.write(chunk)
                have += len(chunk)
                progress.fetched += len(chunk)
                progress.show(done_before + have)
                leave_if_orphaned()
    if have < wheel.size:
        raise OSError(f"the connection ended after {have} of {wheel.size} bytes")


PARENT = os.getppid()


def leave_if_orphaned():
    """The script that started this one was killed: leave the partial file to its next run."""
    if os.getppid() != PARENT:
        sys.exit(1)


def verified(wheel):
    if wheel.sha256 is None:
        return True
    digest = hashlib.sha256()
    with wheel.part.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest() == wheel.sha256


def fetch(net, wheel, progress, done_before):
    for attempt in range(1, ATTEMPTS + 1):
        try:
            fetch_rest(net, wheel, progress, done_before)
            if verified(wheel):
                wheel.part.replace(wheel.path)
                return
            error = f"the hash of {wheel.part.name} is wrong"
            wheel.part.unlink()
        except OSError as caught:  # urllib's errors and time-outs are among them
            if isinstance(caught, urllib.error.HTTPError) and caught.code == 416:
                wheel.part.unlink(missing_ok=True)
            error = caught
            if caught.errno in (errno.ENOSPC, errno.EDQUOT):
                break
        if attempt < ATTEMPTS:
            print(f"set-up: {wheel.path.name}: {error}; attempt {attempt + 1} of {ATTEMPTS}", file=sys.stderr, flush=True)
            time.sleep(min(2**attempt, 20))
    hint = f"look at the network and the disk (df -h '{wheel.path.parent}'), then run the same command again: it goes on from here"
    raise SystemExit(f"set-up: error: could not fetch {wheel.path.name}: {error}\n    to fix it: {hint}")


def main():
    report, folder, listing = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    quiet = "--quiet" in sys.argv[4:]
    folder.mkdir(parents=True, exist_ok=True)
    wheels = [Wheel(item, folder) for item in json.loads(pathlib.Path(report).read_text())["install"]]
    net = opener()
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda wheel: measure(net, wheel), wheels))
    except (OSError, ValueError) as error:
        print(f"set-up: cannot ask for the sizes of the files ({error})", file=sys.stderr)
        return CANNOT
    total, have = sum(w.size for w in wheels), sum(w.have() for w in wheels)
    if not quiet:
        kept = f", {have / 1e6:.0f} MB of them are here from an earlier run" if have else ""
        print(f"set-up: {len(wheels)} files, {total / 1e6:.0f} MB to fetch{kept}", file=sys.stderr, flush=True)
    progress, done = Progress(total, quiet), 0
    for wheel in wheels:
        if not wheel.path.exists():
            fetch(net, wheel, progress, done)
        done += wheel.size
    progress.show(done, last=True)
    listing.write_text("".join(f"{wheel.path}\n" for wheel in wheels))
    return 0


if __name__ == "__main__":
    sys.exit(main())
