#!/usr/bin/env python3
"""For kernels without netem.

    delay.py MILLISECONDS A,B [C,D ...]

passes each frame from interface A to B and back, and holds it for so long. Run it in the network namespace of all these interfaces. It ends with
its standard input.

    delay.py plain A

lets an interface send frames as they are to arrive: with checksums, and no longer than they may be. Whoever sends through A needs that.
"""

import array
import fcntl
import heapq
import select
import socket
import struct
import sys
import time

ALL = 3  # ETH_P_ALL of linux/if_ether.h
OUTGOING = 4  # PACKET_OUTGOING of linux/if_packet.h: a frame that this machine has sent itself
LONGEST = 65536
SIOCETHTOOL = 0x8946  # linux/sockios.h
SWITCHES = 0x17, 0x1F, 0x24  # ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO of linux/ethtool.h


def main():
    if sys.argv[1] == "plain":
        return plain(sys.argv[2])
    delay = float(sys.argv[1]) / 1e3
    other = {}
    for pair in sys.argv[2:]:
        one, two = (attached(name) for name in pair.split(","))
        other[one], other[two] = two, one
    held, number = [], 0  # (when it is due, its number, where to, the frame)
    print("passing", flush=True)
    while True:
        wait = max(0, held[0][0] - time.monotonic()) if held else None
        for ready in select.select([sys.stdin, *other], [], [], wait)[0]:
            if ready is sys.stdin:
                return
            for frame in waiting(ready):
                number += 1
                heapq.heappush(held, (time.monotonic() + delay, number, other[ready], frame))
        while held and held[0][0] <= time.monotonic():
            _, _, to, frame = heapq.heappop(held)
            try:
                to.send(frame)
            except OSError:
                pass  # the link is down or full: a lost frame, which TCP sends again


def plain(name):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for switch in SWITCHES:
            value = array.array("B", struct.pack("II", switch, 0))
            request = struct.pack("16sP", name.encode(), value.buffer_info()[0])
            fcntl.ioctl(any_socket, SIOCETHTOOL, request.ljust(40, b"\0"))


def attached(name):
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    raw.bind((name, 0))
    raw.setblocking(False)
    return raw


def waiting(raw):
    """All frames that have arrived."""
    while True:
        try:
            frame, address = raw.recvfrom(LONGEST)
        except BlockingIOError:
            return
        if address[2] != OUTGOING:
            yield frame


if __name__ == "__main__":
    main()
