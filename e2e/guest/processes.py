"""A process that a test starts here: a virtual machine or a server, its log, its sockets, its end.

It knows neither what is started nor what is tested.
"""

import os
import re
import socket
import subprocess
import time

LOOK_EVERY_S = 0.05
STOP_TIMEOUT_S = 20


class GuestError(Exception):
    """A guest, or a process beside it, does not do what it must; says which one and what it last said."""


class Process:
    """One process, from start to `stop`. Its output goes to `log`; `other_logs` are read too for its last words."""

    def __init__(self, what, command, log, other_logs=()):
        self.what, self.logs = what, [log, *other_logs]
        with open(log, "wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def check_alive(self):
        if self.process.poll() is not None:
            raise GuestError(f"{self.what} ended with {self.process.returncode}: {self.last_words()}")

    def last_words(self, lines=5):
        """The end of its logs, in one line."""
        said = []
        for path in self.logs:
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    said += file.read().splitlines()[-lines:]
            except OSError:
                pass
        return " / ".join(re.sub(r"\x1b\S*", "", line).strip() for line in said) or "it has said nothing"

    def wait_until(self, holds, what, timeout_s):
        """Returns what `holds` does once it is true, while the process lives."""
        deadline = time.monotonic() + timeout_s
        while not (held := holds()):
            self.check_alive()
            if time.monotonic() > deadline:
                raise GuestError(f"{self.what}: {what} in {timeout_s:.0f} s: {self.last_words()}")
            time.sleep(LOOK_EVERY_S)
        return held

    def wait_for_file(self, path, timeout_s=20):
        """Until a socket or file is there."""
        self.wait_until(lambda: os.path.exists(path), f"no {path}", timeout_s)

    def connect(self, path, timeout_s):
        """A connection to a UNIX socket that the process listens at, or will."""

        def attempt():
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(path)
            except OSError:
                connection.close()
                return None
            return connection

        return self.wait_until(attempt, f"{path} is not open", timeout_s)

    def wait(self, timeout_s):
        """Its exit status, once it has ended by itself."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise GuestError(f"{self.what} has not ended in {timeout_s} s: {self.last_words()}") from None

    def stop(self, number=None):
        """Ends it: at once, as if its power were cut, or by a signal that it heeds."""
        if self.process.poll() is None:
            if number is None:
                self.process.kill()
            else:
                self.process.send_signal(number)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise GuestError(f"{self.what} had to be killed: {self.last_words()}") from None
