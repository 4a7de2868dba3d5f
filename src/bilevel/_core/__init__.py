"""Pytrees, linear algebra, values and the dataclasses that parts are: what everything else stands on."""
