"""The HTTP protocol between :mod:`tvmtune_vta.device.server` and its clients.

HTTP/1.1, so that ``curl`` works, too; DIGEST is the SHA-256 of a program's file in hex.

``GET /``
    JSON: ``protocol`` (1) and the fields of
    :meth:`tvmtune_vta.device.accelerator.Accelerator.describe`.
``PUT /programs/DIGEST``
    Load a program's file (:mod:`tvmtune_vta.hardware.program`).
``POST /programs/DIGEST``
    Run it. The body is the concatenation of its inputs, the response that of its outputs, as they lie
    in memory; the header ``Server-Timing`` holds the milliseconds of the run. 404 if it is not loaded.
``DELETE /programs/DIGEST``
    Unload it.
``PUT /fpga/NAME.bit``
    Load the FPGA with this bitstream.

Errors are status 400 or above with a line of text.

A server with a secret (:mod:`tvmtune.remote.access`) expects the header ``Authorization: Bearer TOKEN``
in each request, and answers 401 without it. The token does not reveal the secret, but whoever reads the
traffic can use it: it is not encrypted.
"""

from tvmtune.remote import access

PORT = 9191
VERSION = 1
PROGRAMS, FPGA = "/programs/", "/fpga/"
"""Prefixes of paths."""


def token(secret: bytes) -> str:
    """What clients that know ``secret`` send."""
    return access.proof(secret, "tvmtune VTA server").hex()
