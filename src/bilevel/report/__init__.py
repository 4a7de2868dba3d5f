"""A result as a page: one HTML file that opens offline, with charts, the tables behind them, and what was found.

Users meet it as `result.report(path)`, `results.report(path)` and `bilevel report`.
"""
