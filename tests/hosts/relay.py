"""A link with latency and loss, for kernels without netem: forwards frames between two interfaces of this network
namespace.

    relay.py INTERFACE INTERFACE DELAY_MS LOSS_PERCENT
    relay.py disable_offload INTERFACE

Exits at the end of its input, and then prints how many frames it has lost. The seed of the losses is fixed; which
frames are lost depends on their timing. Senders must not leave checksums or segmentation to their interface, which the
second form ensures.
"""

import ctypes
import fcntl
import heapq
import random
import select
import socket
import struct
import sys
import time

ETH_P_ALL = 3
PACKET_OUTGOING = 4
SIOCETHTOOL = 0x8946
ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO = 0x17, 0x1F, 0x24


def disable_offload(interface):
    for command in (ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_STXCSUM):
        value = ctypes.create_string_buffer(struct.pack("II", command, 0))
        request = struct.pack("16sQ16x", interface.encode(), ctypes.addressof(value))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SIOCETHTOOL, request)


def forward_frames(names, delay, loss):
    ends = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) for _ in names]
    for end, name in zip(ends, names):
        end.bind((name, 0))
    print("ready", flush=True)
    numbers = random.Random(20261117)
    waiting, come, lost = [], 0, 0
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([*ends, sys.stdin], [], [], pause)
        if sys.stdin in readable:
            return lost
        for end in readable:
            frame, address = end.recvfrom(1 << 16)
            if address[2] == PACKET_OUTGOING:  # sent from here
                continue
            come += 1
            if numbers.random() < loss:
                lost += 1
            else:
                heapq.heappush(waiting, (time.monotonic() + delay, come, ends[end is ends[0]], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, to, frame = heapq.heappop(waiting)
            to.send(frame)


def main(arguments):
    if arguments[0] == "disable_offload":
        disable_offload(arguments[1])
    else:
        print(forward_frames(arguments[:2], float(arguments[2]) / 1e3, float(arguments[3]) / 100))


if __name__ == "__main__":
    main(sys.argv[1:])
