"""Pages about logs and benchmarks: self-contained HTML, tables and pictures.

``summary`` computes what a page says about a log, ``compare`` about two; ``charts`` makes Vega-Lite
specifications of it, ``page`` the HTML. ``matrix`` does the same for the results of ``tvmtune bench``.
"""
