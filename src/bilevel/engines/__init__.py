"""What runs us on a cluster, each with an extra of its own: `bilevel.engines.ray` (`pip install "bilevel[ray]"`)."""
