"""The rules, by theme. ``accord.passes.phases`` lists them in order."""
