"""Exceptions that users see as one line instead of a traceback, and helpers for their messages."""


class TvmtuneError(Exception):
    """A valid request failed; the command line exits with 1.

    The message names the cause and, if there is one, the remedy.
    """

    exit_code = 1


class UsageError(TvmtuneError):
    """The request is invalid (unknown name, impossible value); the command line exits with 2."""

    exit_code = 2


class ArgumentError(UsageError):
    """An argument of an operator is invalid; the message starts with its name."""


MEMORY = ("MemoryError", "Cannot allocate", "bad_alloc", "out of memory")
"""Parts of out-of-memory errors of Python, the system, C++ and CUDA."""


def out_of_memory(error: BaseException) -> str:
    """The last line of an out-of-memory error, of this machine or its GPU, with the remedy; empty for
    other errors."""
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in MEMORY):
        what = last_line(error).rstrip(".")
        return f"{what}. Free memory, or use a smaller network or batch."
    return ""


def last_line(error: BaseException) -> str:
    """The part of an error that names the cause: TVM puts its C++ stack before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type's name."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def one_line(error: BaseException, limit: int = 300) -> str:
    """The message of another library's error on one line of at most ``limit`` characters."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line).rstrip(".") or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def nearest(word: str, known: list[str], *, count: int = 3) -> str:
    """``" Did you mean a, b?"`` for the known names close to ``word``, else the known names: all up to
    12, or the first 12 of them."""
    import difflib

    word = word.lower()
    # Typos seldom hit the first letter: with another one, a name must be closer.
    likely = [
        name
        for name in difflib.get_close_matches(word, known, n=len(known) or 1, cutoff=0.5)
        if name[:1] == word[:1] or difflib.SequenceMatcher(None, name, word).ratio() > 0.65
    ][:count]
    if likely:
        return f" Did you mean {', '.join(likely)}?"
    listed = ", ".join(sorted(known)[:12])
    return f" Known: {listed}{', ...' if len(known) > 12 else '.'}"
