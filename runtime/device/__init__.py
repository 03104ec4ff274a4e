"""The device runtime: one whole cycle (draft, target pass, verification, commit) as one straight-line program."""
