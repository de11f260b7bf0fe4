"""From a float network to whole numbers: which part, with which scales, how far off it is."""
