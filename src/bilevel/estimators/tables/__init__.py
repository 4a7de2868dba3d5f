"""Fits a model to a table on disk, one column of which names each row's task, and compares it with baseline models.

`bilevel fit`, `predict`, `adapt` and `show` call this package. It needs the extra: `pip install "bilevel[tables]"`.
"""

try:
    import pyarrow  # noqa: F401
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("tables need pyarrow and scikit-learn: pip install 'bilevel[tables]'") from error
