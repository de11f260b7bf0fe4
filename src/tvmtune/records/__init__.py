"""The log, its best records, and the names that workloads keep between runs."""
