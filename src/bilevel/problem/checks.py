"""Shim."""
from bilevel._core.values import is_number, is_positive, whole as check_count, rate as check_rate
