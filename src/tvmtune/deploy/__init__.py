"""From a lowered network to a library on disk, and what is done with one: check, run, bench."""
