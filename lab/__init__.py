"""For developers, outside of the wheel: users against the engine's scheduler in simulated time.

Whole experiments in a second, true knees from long runs (`python -m lab.true_knee`), the seeded
engines that the search is tested on, and the duel of our search with those of other tools. It
imports `harness`, never the reverse.
"""
