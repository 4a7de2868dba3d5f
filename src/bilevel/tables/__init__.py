"""A table on disk, one column of which says which task a row is of: read, fitted, judged against rivals, kept.

What `bilevel fit`, `predict`, `adapt` and `show` call. It needs the extra: `pip install "bilevel[tables]"`.
"""

try:
    import pyarrow  # noqa: F401
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("tables need pyarrow and scikit-learn: pip install 'bilevel[tables]'") from error
