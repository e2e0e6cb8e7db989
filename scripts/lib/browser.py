"""A headless Chromium, controlled over its DevTools protocol. The protocol's pipe (--remote-debugging-pipe) needs neither a port nor a
websocket, and the browser exits by itself when this side of the pipe is closed for any reason."""

import base64
import contextlib
import fcntl
import functools
import http.server
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time

NAMES = "chromium", "chromium-browser", "google-chrome"
# Timeouts for one answer of the browser or one page to load, and for all requests.
SECONDS = 30
ALL_SECONDS = 600
# Flags that keep it from using the network and from prompting.
QUIET = (
    "--headless=new --disable-gpu --no-first-run --no-default-browser-check --disable-background-networking --disable-sync "
    "--disable-component-update --disable-extensions --disable-dev-shm-usage --mute-audio --hide-scrollbars"
).split()


def find():
    return next((path for path in map(shutil.which, NAMES) if path), None)


def needed(what, command):
    """The browser's program; None, and why `what` is not verified here, if there is none or the command is not built."""
    program = find()
    if program and command.is_file():
        return program
    missing = f"`{command.name}` is not built" if program else f"none of {', '.join(NAMES)} is on PATH"
    print(f"not verified here: {what}: {missing}")
    return None


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(folder):
    """The folder's address on a free port of this machine."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


@contextlib.contextmanager
def opened(program):
    """A tab in a separate browser, which leaves no files."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Chromium reads from 3 and writes to 4; with other numbers, no end of a pipe is overwritten on the way there.
        to_it, from_us, from_it, to_us = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in [*os.pipe(), *os.pipe()])
        options = [*QUIET, *(["--no-sandbox"] if os.geteuid() == 0 else []), f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        shell = ["bash", "-c", f'exec "$@" 3<&{to_it} 4>&{to_us}', "bash", program, *options, "about:blank"]
        quiet = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
        inside = {**os.environ, "TMPDIR": profile}
        process = subprocess.Popen(shell, pass_fds=(to_it, to_us), start_new_session=True, env=inside, **quiet)
        os.close(to_it)
        os.close(to_us)
        try:
            yield Tab(from_it, from_us)
        finally:
            os.close(from_us)  # upon which it ends; what has not ended soon is killed
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            os.close(from_it)
            killed_by = time.monotonic() + SECONDS
            with contextlib.suppress(ProcessLookupError):
                while time.monotonic() < killed_by:  # its helpers outlive it by a moment
                    os.killpg(process.pid, signal.SIGKILL)
                    process.poll()
                    time.sleep(0.05)


class Tab:
    """One tab. `complaints` are the page's messages and failed loads since the last visit."""

    def __init__(self, reads, writes):
        self.reads, self.writes, self.rest, self.last, self.session = reads, writes, b"", 0, None
        self.complaints, self.seen, self.addresses = [], set(), {}
        self.ends = time.monotonic() + ALL_SECONDS
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writes, json.dumps(message).encode() + b"\0")
        answer = self.until(lambda found: found.get("id") == self.last, method)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def until(self, wanted, what):
        """The first matching message; events before it are recorded."""
        begin = time.monotonic()
        deadline = min(begin + SECONDS, self.ends)
        while True:
            while b"\0" in self.rest:
                line, self.rest = self.rest.split(b"\0", 1)
                message = json.loads(line)
                self.note(message.get("method"), message.get("params", {}))
                if wanted(message):
                    return message
            if not select.select([self.reads], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"the browser did not answer {what} within {time.monotonic() - begin:.0f} s")
            received = os.read(self.reads, 1 << 20)
            if not received:
                raise RuntimeError(f"the browser ended before it answered {what}")
            self.rest += received

    def note(self, event, fields):
        self.seen.add(event)
        if event == "Runtime.exceptionThrown":
            details = fields["exceptionDetails"]
            self.complaints.append(f"an error in a script: {details.get('exception', {}).get('description', details['text'])}")
        elif event == "Runtime.consoleAPICalled" and fields["type"] in ("error", "assert"):
            self.complaints.append("console: " + " ".join(str(part.get("value", part.get("description"))) for part in fields["args"]))
        elif event == "Log.entryAdded" and fields["entry"]["level"] == "error":
            self.complaints.append(f"console: {fields['entry']['text']} {fields['entry'].get('url', '')}".strip())
        elif event == "Network.requestWillBeSent":
            self.addresses[fields["requestId"]] = fields["request"]["url"]
        elif event == "Network.loadingFailed" and not fields.get("canceled"):
            self.complaints.append(f"failed to load {self.addresses.get(fields['requestId'])}: {fields['errorText']}")
        elif event == "Network.responseReceived" and fields["response"]["status"] >= 400:
            self.complaints.append(f"failed to load {fields['response']['url']}: status {fields['response']['status']}")

    def visit(self, address, width, height=800):
        self.complaints, self.addresses = [], {}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.seen.clear()
        self.call("Page.navigate", url=address)
        if "Page.loadEventFired" not in self.seen:
            self.until(lambda found: found.get("method") == "Page.loadEventFired", f"Page.navigate {address}")
        # Fonts change widths; two frames later the layout is final.
        self.ask("document.fonts.ready.then(() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))).then(() => 1)")

    def prefer(self, **features):
        """What the reader's system prefers from now on, such as `color_scheme="dark"`; nothing is the default."""
        named = [{"name": "prefers-" + name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=named)

    def open_folds(self):
        """Folds hide what is in them."""
        self.ask("document.querySelectorAll('main details').forEach((fold) => { fold.open = true; })")

    def ask(self, expression):
        """The value of an expression on the page; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"the page could not evaluate {expression[:60]}…: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def picture(self, path):
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
