"""Weights in 2, 3, 4 or 8 bits: rounding them, writing and reading them, and measuring what that costs."""
