"""TVM's tracker, for clients that know a secret.

TVM's tracker accepts connections itself, and has no hook for that: its class for connections is
replaced by one that lets nothing through before the client has proved that it knows the secret.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tvm.rpc import tracker

from tvmtune.remote import access
from tvmtune.remote.protocol import REPLY_TIMEOUT


def install(secret: bytes) -> None:
    """Have the tracker of this process ask every client for ``secret``."""

    class Connection(_GatedConnection):
        key = secret

    tracker.TCPEventHandler = Connection


class _GatedConnection(tracker.TCPEventHandler):
    key: bytes

    def __init__(self, *arguments: Any) -> None:
        self._gate = access.Gate(self.key)
        super().__init__(*arguments)
        self._deadline = self._ioloop.call_later(REPLY_TIMEOUT, self._late)

    def on_message(self, message: bytes) -> None:
        if self._gate.is_open:
            self._pass(message)
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
                self._pass(self._gate.rest)

    def _pass(self, message: bytes) -> None:
        """To TVM's own code, which takes the magic number by itself."""
        first = self._init_req_nbytes
        if first and len(message) > first:
            super().on_message(message[:first])
            message = message[first:]
        super().on_message(message)

    def _late(self) -> None:
        if not self._gate.is_open:
            self.close()
