"""The secret that a farm shares, and proofs that one knows it.

A tracker and servers that have a secret serve only clients that know it. It is never sent: who asks for
access proves that they know it, with an HMAC over a nonce of the other side, which holds once. What
follows is neither encrypted nor authenticated: whoever can read or change the traffic between two
machines can read the data, and take over a connection that is open. Against that, only a tunnel helps.

With a tracker, both sides prove it before TVM's protocol begins (:class:`Gate`, :class:`Caller`): the
client sends :data:`HELLO` and a nonce; the tracker answers HELLO, its nonce and its proof; the client
sends its proof; the tracker answers HELLO again. A server's match key, which its tracker gives to one
client, is its nonce: the client appends its proof to it (:func:`ticket`). TVM's own greeting has no
room for more.

Boards may have Python and NumPy only, so this imports the standard library only.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import struct
from pathlib import Path

from tvmtune.errors import UsageError

SECRET, SECRET_FILE = "TVMTUNE_SECRET", "TVMTUNE_SECRET_FILE"
"""Environment variables: the secret itself, or the file that holds it, which comes first."""
SHORTEST = 16
"""Bytes of a secret: whoever sees a proof may try all shorter ones without asking anybody."""
NONCE_BYTES = 32
_REMEDY = "make one with: (umask 077; openssl rand -hex 32 > FILE)"


def secret() -> bytes | None:
    """The secret that the environment names, without white space around it; None if it names none.

    Raises :class:`UsageError` for one that cannot be read, or that is too short.
    """
    if path := os.environ.get(SECRET_FILE):
        return read(Path(path))
    text = os.environ.get(SECRET)
    return None if text is None else _checked(text.encode(errors="surrogateescape"), SECRET)


def read(path: Path) -> bytes:
    """The secret in a file; raises :class:`UsageError` if there is none, or if everyone can read it."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & stat.S_IROTH:
                raise UsageError(
                    f"every user of this machine can read the secret in {path}: chmod o-r {path}"
                )
            data = file.read(1 << 16)
    except OSError as error:
        raise UsageError(f"the secret in {path} cannot be read: {error.strerror}") from None
    return _checked(data, str(path))


def _checked(data: bytes, source: str) -> bytes:
    data = data.strip()
    if len(data) < SHORTEST:
        raise UsageError(
            f"the secret in {source} is too short: it needs at least {SHORTEST} characters; {_REMEDY}"
        )
    return data


def nonce() -> bytes:
    """Bytes that nobody can foresee."""
    return secrets.token_bytes(NONCE_BYTES)


HELLO, SECRET_NEEDED, SECRET_WRONG = 0x2F2AC, 0x2F2AD, 0x2F2AE
"""Codes: an exchange of proofs; why a connection ends."""
_CODE = struct.Struct("<i")
ANSWER_BYTES = _CODE.size + NONCE_BYTES + 32
"""Bytes of what a tracker answers to a caller's hello."""


class WrongSecret(Exception):
    """The other side does not know the secret, or another one."""


class Caller:
    """The client's side of an exchange of proofs, without its input and output."""

    def __init__(self, key: bytes) -> None:
        self._key, self._nonce = key, nonce()

    def hello(self) -> bytes:
        return _CODE.pack(HELLO) + self._nonce

    def reply(self, answer: bytes) -> bytes:
        """The proof to send after :data:`ANSWER_BYTES` of an answer, whose code was HELLO; raises
        :class:`WrongSecret` if the other side does not know the secret."""
        theirs, given = answer[_CODE.size : _CODE.size + NONCE_BYTES], answer[-32:]
        if not matches(given, proof(self._key, "tracker", self._nonce, theirs)):
            raise WrongSecret
        return proof(self._key, "client", theirs, self._nonce)


class Gate:
    """The server's side of an exchange of proofs, without its input and output."""

    def __init__(self, key: bytes) -> None:
        self._key, self._nonce = key, nonce()
        self._theirs = b""
        self._data = b""
        self.is_open = False
        """Whether the client knows the secret; then :attr:`rest` is what it has sent beyond."""
        self.refused = False
        """Whether the connection should be closed, after what :meth:`receive` returned."""

    @property
    def rest(self) -> bytes:
        return self._data

    def receive(self, data: bytes) -> bytes:
        """Take what has arrived; returns what to send."""
        self._data += data
        answer = b""
        if not self._theirs:
            if len(self._data) < _CODE.size:
                return answer
            if _CODE.unpack(self._data[: _CODE.size])[0] != HELLO:
                self.refused = True
                return _CODE.pack(SECRET_NEEDED)
            if len(self._data) < _CODE.size + NONCE_BYTES:
                return answer
            self._theirs = self._take(_CODE.size + NONCE_BYTES)[_CODE.size :]
            own = proof(self._key, "tracker", self._theirs, self._nonce)
            answer = _CODE.pack(HELLO) + self._nonce + own
        if len(self._data) < 32:
            return answer
        expected = proof(self._key, "client", self._nonce, self._theirs)
        if not matches(self._take(32), expected):
            self.refused = True
            return answer + _CODE.pack(SECRET_WRONG)
        self.is_open = True
        return answer + _CODE.pack(HELLO)

    def _take(self, size: int) -> bytes:
        taken, self._data = self._data[:size], self._data[size:]
        return taken


def ticket(key: bytes | None, match: str) -> str:
    """What a client sends to the server that expects ``match``."""
    return match if key is None else f"{match}:{proof(key, 'board', match.encode()).hex()}"


def proof(key: bytes, purpose: str, *said: bytes) -> bytes:
    """What only those who know the secret ``key`` can say: an HMAC over what was ``said`` before,
    for one ``purpose``, so that an answer to one question is none to another."""
    parts = b"".join(len(part).to_bytes(4, "little") + part for part in (purpose.encode(), *said))
    return hmac.new(key, parts, hashlib.sha256).digest()


def matches(given: bytes, expected: bytes) -> bool:
    """Whether they are equal; the time that this takes does not depend on where they differ."""
    return hmac.compare_digest(given, expected)


def check_open(host: str, is_local: bool, has_secret: bool, insecure: bool, what: str) -> None:
    """Raise :class:`UsageError` if ``what`` would serve other machines without a secret."""
    if is_local or has_secret or insecure:
        return
    raise UsageError(
        f"at {host}, everyone who can reach this {what} could run any code, and read and write any "
        "file, as you. Give --secret-file FILE, here and on all machines that use it; or listen on "
        "127.0.0.1 and let clients come through SSH (docs/farm.md); or, in a network that only "
        "trusted machines can reach, give --insecure."
    )
