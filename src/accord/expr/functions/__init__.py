"""Functions of real numbers as expressions of primitives, for f32 and f64.

The f32 forms are meant for inner loops: errors are a few units in the last place over the whole range, the number of
operations is small, there are no branches other than "rare".
"""
