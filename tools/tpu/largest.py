"""The largest micro-batch that fits, by bisection."""

LARGEST_TRIED = 65_536


def largest(fits, start, limit=LARGEST_TRIED):
    """The largest size that fits, to a sixteenth of itself (exactly where it is below 16).

    Args:
        fits: `fits(size)` -> bool; what is too large once is too large from there on.
        start: The size to begin with.
        limit: No larger one is tried.

    Returns:
        The size, or 0 if not even 1 fits.
    """
    fitting, too_large = 0, limit + 1
    size = min(start, limit)
    while fitting < size < too_large:
        if fits(size):
            fitting = size
            size = min(2 * size, too_large - 1)
        else:
            too_large = size
            size //= 2
        if fitting and too_large <= limit:
            break
    while too_large - fitting > max(fitting // 16, 1) and fitting:
        step = max(fitting // 16, 1)
        size = fitting + max((too_large - fitting) // 2 // step, 1) * step
        if fits(size):
            fitting = size
        else:
            too_large = size
    return fitting
