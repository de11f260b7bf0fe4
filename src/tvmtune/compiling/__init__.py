"""From the records of a log to a verified library, and the choice of the library to ship."""
