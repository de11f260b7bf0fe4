"""What ``peers.py`` consists of, in the order of its flow.

``state``: what a row depends on. ``libraries``: tune and compile. ``quiet``: wait for an idle machine.
``row``: measure, in a process of its own, with ``roofline``. ``rows``: their file. ``report``: tables.
"""
