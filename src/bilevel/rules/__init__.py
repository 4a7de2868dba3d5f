"""Rules for x and y beyond optax's own: functions from a rate to an optax transformation."""

from bilevel.rules.plateau import Plateau

__all__ = ["Plateau"]
