"""The session's loop, the task scheduler, the cost model and the tuners."""
