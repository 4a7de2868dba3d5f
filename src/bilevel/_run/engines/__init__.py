"""Engines for clusters, each with its own extra: `bilevel.engines.ray` (`pip install "bilevel[ray]"`)."""
