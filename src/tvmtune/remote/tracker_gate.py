"""TVM's tracker, for clients that know a secret, and with strangers at its port.

TVM's tracker accepts connections itself, and has no hook for that: its class for connections is
replaced. Without a secret, by one that closes what speaks another protocol, where TVM's prints an
exception; with one, by one that lets nothing through before the client has proved that it knows it.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tvm.rpc import tracker

from tvmtune.remote import access
from tvmtune.remote.protocol import REPLY_TIMEOUT, TRACKER_MAGIC, read_integer


def install(secret: bytes | None) -> None:
    """Have the tracker of this process ask every client for ``secret``, if there is one."""
    if secret is None:
        tracker.TCPEventHandler = _Connection
        return

    known: bytes = secret

    class Connection(_GatedConnection):
        key = known

    tracker.TCPEventHandler = Connection


class _Connection(tracker.TCPEventHandler):
    def __init__(self, *arguments: Any) -> None:
        self._first = b""
        """What has come of the magic number."""
        super().__init__(*arguments)

    def on_message(self, message: bytes) -> None:
        if self._init_req_nbytes:
            # TVM takes the magic number by itself only, and all at once.
            self._first += message
            magic, message = self._first[:4], self._first[4:]
            if len(magic) < 4:
                return
            if read_integer(magic) != TRACKER_MAGIC:
                self.signal_close()
                return
            super().on_message(magic)
        if message:
            super().on_message(message)


class _GatedConnection(_Connection):
    key: bytes

    def __init__(self, *arguments: Any) -> None:
        self._gate = access.Gate(self.key)
        super().__init__(*arguments)
        self._deadline = self._ioloop.call_later(REPLY_TIMEOUT, self._late)

    def on_message(self, message: bytes) -> None:
        if self._gate.is_open:
            super().on_message(message)
        else:
            self._prove(message)

    def _prove(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            if answer := self._gate.receive(message):
                self.write_message(answer)
            if self._gate.refused:
                self.signal_close()
        if self._gate.is_open:
            self._ioloop.remove_timeout(self._deadline)
            if self._gate.rest:
                super().on_message(self._gate.rest)

    def _late(self) -> None:
        if not self._gate.is_open:
            self.close()
