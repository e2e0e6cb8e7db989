"""Golden bytes for engine/tcpstore/tests/it/wire.rs: the messages between PyTorch's own TCPStore client and server.

Run it with a Python that has PyTorch 2.11; it rewrites tcpstore.json, from which tests/fuzz.rs starts, too. Two clients, A and B, talk to one
server through a proxy that records every byte in order. Each call of the clients' API is one entry, with the bytes of each
direction merged while the direction stays the same.
"""

import json
import pathlib
import socket
import threading
import time
from datetime import timedelta
from multiprocessing.managers import BaseManager

import torch
from torch.distributed import PrefixStore, TCPStore

OUTPUT = pathlib.Path(__file__).with_name("tcpstore.json")
QUIET = 0.1  # seconds without a byte after which a call has said all


class Proxy:
    """Forwards bytes between clients and the server, and records them. It runs in a separate process: some of the
    store's methods keep the interpreter's lock while they wait for the server."""

    def __init__(self, port):
        self.target, self.said, self.lock, self.last = port, [], threading.Lock(), time.monotonic()
        self.listener = socket.create_server(("127.0.0.1", 0))

    def expect(self, name):
        """The port to connect to; the next connection will be called `name`."""
        threading.Thread(target=self.accept, args=(name,), daemon=True).start()
        return self.listener.getsockname()[1]

    def accept(self, name):
        near, _ = self.listener.accept()
        far = socket.create_connection(("127.0.0.1", self.target))
        for source, sink, side in ((near, far, "client"), (far, near, "server")):
            threading.Thread(target=self.pump, args=(name, source, sink, side), daemon=True).start()

    def pump(self, name, source, sink, side):
        try:
            while data := source.recv(65536):
                self.note(name, side, data)
                sink.sendall(data)
        except OSError:
            pass

    def note(self, name, side, data):
        with self.lock:
            self.last = time.monotonic()
            if self.said and self.said[-1][:2] == [name, side]:
                self.said[-1][2] += data
            else:
                self.said.append([name, side, data])

    def take(self):
        """Waits until no bytes flow, and returns those recorded since the last call."""
        self.last = time.monotonic()
        while time.monotonic() - self.last < QUIET:
            time.sleep(QUIET / 10)
        with self.lock:
            said, self.said = self.said, []
        return [{"connection": c, "from": side, "bytes": data.hex()} for c, side, data in said]


def main():
    server = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=5))
    BaseManager.register("Proxy", Proxy)
    manager = BaseManager()
    manager.start()
    proxy, calls = manager.Proxy(server.port), []

    def record(text, call):
        try:
            call()
        except (torch.distributed.DistError, RuntimeError):
            pass  # a wait that ran out is part of the recording
        calls.append({"call": text, "said": proxy.take()})

    def client(name):
        port = proxy.expect(name)
        return TCPStore("127.0.0.1", port, None, False, timedelta(seconds=5), wait_for_workers=False)

    stores = {}
    for name in "AB":
        record(f"{name} = TCPStore()", lambda name=name: stores.update({name: client(name)}))
    a, b = stores["A"], stores["B"]
    brief = timedelta(milliseconds=50)

    record("A.set('key', 'value')", lambda: a.set("key", "value"))
    record("A.list_keys()", a.list_keys)
    record("A.get('key')", lambda: a.get("key"))
    record("A.set('key', '')", lambda: a.set("key", ""))
    record("A.set('bytes', 2000 bytes)", lambda: a.set("bytes", bytes(range(250)) * 8))
    record("A.add('counter', 5)", lambda: a.add("counter", 5))
    record("A.add('counter', -12)", lambda: a.add("counter", -12))
    record("A.get('counter')", lambda: a.get("counter"))
    record("A.compare_set('cas', '', 'first')", lambda: a.compare_set("cas", "", "first"))
    record("A.compare_set('cas', 'first', 'second')", lambda: a.compare_set("cas", "first", "second"))
    record("A.compare_set('cas', 'first', 'third')", lambda: a.compare_set("cas", "first", "third"))
    record("A.compare_set('absent', 'expected', 'desired')", lambda: a.compare_set("absent", "expected", "desired"))
    record("A.check(['key', 'cas'])", lambda: a.check(["key", "cas"]))
    record("A.check(['key', 'absent'])", lambda: a.check(["key", "absent"]))
    record("A.check([])", lambda: a.check([]))
    record("A.wait(['key', 'cas'])", lambda: a.wait(["key", "cas"]))
    record("A.wait(['absent'], 50 ms)", lambda: a.wait(["absent"], brief))
    record("A.num_keys()", a.num_keys)
    record("A.append('list', 'one,')", lambda: a.append("list", "one,"))
    record("A.append('list', 'two,')", lambda: a.append("list", "two,"))
    record("A.get('list')", lambda: a.get("list"))
    record("A.multi_set(['m1', 'm2'], ['v1', 'v2'])", lambda: a.multi_set(["m1", "m2"], ["v1", "v2"]))
    record("A.multi_get(['m1', 'm2', 'list'])", lambda: a.multi_get(["m1", "m2", "list"]))
    record("A.delete_key('m1')", lambda: a.delete_key("m1"))
    record("A.delete_key('m1')", lambda: a.delete_key("m1"))
    record("A.queue_push('q', 'first')", lambda: a.queue_push("q", "first"))
    record("A.queue_push('q', 'second')", lambda: a.queue_push("q", "second"))
    record("A.queue_len('q')", lambda: a.queue_len("q"))
    record("A.check(['q'])", lambda: a.check(["q"]))
    record("A.queue_pop('q')", lambda: a.queue_pop("q"))
    record("A.queue_pop('q', False)", lambda: a.queue_pop("q", False))
    record("A.queue_pop('q', False)", lambda: a.queue_pop("q", False))
    record("A.queue_len('never')", lambda: a.queue_len("never"))
    record("A.num_keys()", a.num_keys)
    record("PrefixStore('inner', PrefixStore('outer', A)).set('k', 'v')",
           lambda: PrefixStore("inner", PrefixStore("outer", a)).set("k", "v"))

    def wakes(call, then):
        waiter = threading.Thread(target=call)
        waiter.start()
        time.sleep(QUIET)
        then()
        waiter.join()

    record("A.wait(['x', 'y']) while B.set('y'), B.set('x')",
           lambda: wakes(lambda: a.wait(["x", "y"]), lambda: (b.set("y", "1"), b.num_keys(), b.set("x", "2"))))
    record("A.get('z') while B.add('z', 1)", lambda: wakes(lambda: a.get("z"), lambda: b.add("z", 1)))
    record("A.get('w') while B.compare_set('w', '', 'v')",
           lambda: wakes(lambda: a.get("w"), lambda: b.compare_set("w", "", "v")))
    record("A.queue_pop('late') while B.queue_push('late', 'v')",
           lambda: wakes(lambda: a.queue_pop("late"), lambda: b.queue_push("late", "v")))

    lines = ",\n".join(json.dumps(call) for call in calls)
    OUTPUT.write_text(f'{{"torch": "{torch.__version__.split("+")[0]}", "calls": [\n{lines}\n]}}\n')
    manager.shutdown()


if __name__ == "__main__":
    main()
