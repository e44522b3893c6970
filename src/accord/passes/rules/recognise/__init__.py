"""Recognition by meaning: operators that an exporter took apart become the one operator that they mean.

Nothing here knows an exporter. A formula is brought to a normal form (:mod:`.algebra`), an activation is compared as
a function (:mod:`.scalar`), and views are followed as permutations of factors, so that any spelling of one meaning
is the same. A rule that found its meaning but could not use it says why.
"""
