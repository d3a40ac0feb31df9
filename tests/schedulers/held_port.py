"""A port that stays reserved until a program listens on it."""
import socket


def held_port():
    """Returns a socket that reserves its port while it is open: it is bound but does not listen, so a server that sets
    SO_REUSEADDR can."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held
