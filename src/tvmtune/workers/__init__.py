"""Worker processes that build and run candidates, and are killed at a deadline.

Workers live on between calls. They are forked from a server that has imported TVM once, so replacing
one that crashed, hung or grew costs milliseconds. No candidate is ever loaded into the session's
process. Whatever a worker starts, such as a linker or a GPU's compiler, ends with it.
"""

from tvmtune.workers.outcome import Outcome, brief, gather, resolve
from tvmtune.workers.pool import Workers
from tvmtune.workers.worker import Worker

__all__ = ["Outcome", "Worker", "Workers", "brief", "gather", "resolve"]
