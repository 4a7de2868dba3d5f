"""Rules for x and y beyond optax's own."""

from bilevel.rules.plateau import Plateau

__all__ = ["Plateau"]
