"""The significance level of every comparison for which the user states no other."""

ALPHA = 0.05
"""The default probability of any false claim, where in truth no variant differs from the baseline."""
