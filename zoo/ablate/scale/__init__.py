"""The verdict across scale: is a variant better at every size, and does its gain hold, shrink or grow?

The statistics work on the natural logarithm of the token speed-up, `theta` = ln c: a variant trained
on T tokens ends where the baseline ends on c T tokens. The modules are pure functions of a table of
runs and know nothing of models.
"""
