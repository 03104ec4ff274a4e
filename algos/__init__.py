"""The decisions of speculative decoding: acceptance rules, tree policies and spatial rules, in NumPy only."""
