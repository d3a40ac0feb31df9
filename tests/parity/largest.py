"""The largest of some differences, by which a check decides."""


def largest(*values):
    """Like max(), but NaN if a value is NaN: max() would pass over it, since comparisons with NaN are false."""
    return next((value for value in values if value != value), max(values))
