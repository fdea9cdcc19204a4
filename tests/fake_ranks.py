"""What torchrun and a process group are to real training programs, for the fake trainer: ranks that wait for one another.

`launch` starts the ranks as torchrun does, each in a session of its own and told by RANK, LOCAL_RANK and WORLD_SIZE who it
is, and ends the others by SIGTERM when one fails. `Peers.meet` returns once all ranks have come; while one is missing the
others wait, for ever if need be, and if one is gone they get an error, as gloo and NCCL do.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import time

POLL_SECONDS = 0.02
"""Between two looks at the ranks."""

REAP_SECONDS = 0.3
"""From a rank's end to the launcher's asking for its status: torchrun looks every 0.1 s, on a busy machine less often."""

PATIENCE_SECONDS = 0.5
"""From SIGTERM to SIGKILL (torchrun takes 30 s)."""


class Peers:
    """The other ranks, behind a socket that the launcher holds the other end of."""

    def __init__(self):
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        number = os.environ.get("FAKE_PEERS")
        self.socket = socket.socket(fileno=int(number)) if number else None

    def meet(self):
        """Waits for all ranks."""
        if self.socket is None:
            return
        try:
            self.socket.sendall(b".")
            answer = self.socket.recv(1)
        except OSError:
            answer = b""
        if not answer:
            raise ConnectionError("Connection closed by peer")


def launch(command, world):
    """Runs a command as so many ranks, and gives the status to leave with."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    ranks, hub = [], Hub()
    try:
        for rank in range(world):
            environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
            with hub.place() as theirs:
                environment["FAKE_PEERS"] = str(theirs.fileno())
                started = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()], start_new_session=True)
            ranks.append(started)
        while True:
            hub.serve(POLL_SECONDS)
            if any(map(waits, ranks)):
                time.sleep(REAP_SECONDS)
            statuses = [rank.poll() for rank in ranks]
            failed = [(rank, status) for rank, status in enumerate(statuses) if status not in (None, 0)]
            if failed:
                for rank, status in failed:
                    print(f"failed: rank {rank} (pid: {ranks[rank].pid}) exitcode: {status}", file=sys.stderr)
                return 1
            if None not in statuses:
                return 0
    finally:
        end(ranks)


def waits(rank):
    """Whether a rank has ended and nobody has asked how."""
    return rank.returncode is None and os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end(ranks):
    """SIGTERM for those that run, and SIGKILL for those that take no notice."""
    running = [rank for rank in ranks if rank.poll() is None]
    for rank in running:
        rank.send_signal(signal.SIGTERM)
    by = time.monotonic() + PATIENCE_SECONDS
    for rank in running:
        try:
            rank.wait(max(0.0, by - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


class Hub:
    """Where ranks meet: each sends a byte when it comes, and gets one when all have."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.sockets, self.here = [], set()

    def place(self):
        """A rank's end of a new connection."""
        ours, theirs = socket.socketpair()
        self.sockets.append(ours)
        self.selector.register(ours, selectors.EVENT_READ)
        return theirs

    def serve(self, seconds):
        """Lets those go that have all come, for so long."""
        by = time.monotonic() + seconds
        while self.sockets and time.monotonic() < by:
            for key, _ in self.selector.select(max(0.0, by - time.monotonic())):
                try:
                    came = key.fileobj.recv(1)
                except OSError:
                    came = b""
                if not came:
                    return self.close()
                self.here.add(key.fileobj)
            if self.here and len(self.here) == len(self.sockets):
                self.here.clear()
                for waiting in self.sockets:
                    waiting.sendall(b".")
        if not self.sockets:
            time.sleep(seconds)

    def close(self):
        """One is gone, so nobody meets any more."""
        for left in self.sockets:
            self.selector.unregister(left)
            left.close()
        self.sockets, self.here = [], set()
