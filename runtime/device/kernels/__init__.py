"""Triton kernels, one file each; the NumPy reference in `algos` is what each of them means."""
