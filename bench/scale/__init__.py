"""Clusters of simulated engines under a virtual clock: the real driver, strategies, placement and index."""
