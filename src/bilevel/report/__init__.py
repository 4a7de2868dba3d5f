"""Shows a result as a page: one HTML file that opens offline, with charts, the tables behind them, and findings.

Users call it as `result.report(path)`, `results.report(path)` and `bilevel report`.
"""
