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
"""

PORT = 9191
VERSION = 1
PROGRAMS, FPGA = "/programs/", "/fpga/"
"""Prefixes of paths."""
