"""The two kinds of failure that a user sees as one line instead of a traceback."""


class TvmtuneError(Exception):
    """Something failed although the request was sound; the command line exits with 1.

    The message names the cause and, where there is one, the remedy.
    """

    exit_code = 1


class UsageError(TvmtuneError):
    """The request itself is wrong (unknown name, impossible value); the command line exits with 2."""

    exit_code = 2


class ArgumentError(UsageError):
    """An argument of an operator does not fit; the message begins with its name."""


MEMORY = ("MemoryError", "Cannot allocate", "bad_alloc", "out of memory")
"""What errors say where memory is short: Python's, the system's, C++'s, CUDA's."""


def memory_is_full(error: BaseException) -> str:
    """The last line of an error that says so of this machine's memory, or its GPU's, and the remedy;
    nothing for all others."""
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in MEMORY):
        what = last_line(error).rstrip(".")
        return f"{what}. End what else uses the memory, or take a smaller network or batch."
    return ""


def last_line(error: BaseException) -> str:
    """The part of an error that says what is wrong: TVM puts its C++ stack before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


def nearest(word: str, known: list[str], *, count: int = 3) -> str:
    """Return ``" Did you mean a, b?"`` for the known names close to ``word``, or the list."""
    import difflib

    close = difflib.get_close_matches(word.lower(), known, n=count, cutoff=0.5)
    if close:
        return f" Did you mean {', '.join(close)}?"
    listed = ", ".join(sorted(known)[:12])
    return f" Known: {listed}{', ...' if len(known) > 12 else ''}."
