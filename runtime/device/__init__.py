"""The whole cycle on the device: drafting, probabilities, verification and commit as one straight-line program."""
