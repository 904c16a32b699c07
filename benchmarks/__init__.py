"""Measurements of zoo against its peers: ratios, inside one run, of interleaved processes."""
