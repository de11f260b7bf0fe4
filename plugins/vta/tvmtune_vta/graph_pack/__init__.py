"""graph_pack: which layers of a network run on VTA, in its packed layout, and the resulting module."""
