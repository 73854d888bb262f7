import functools

import torch.distributed as dist


def rank_zero_only(fn):
    """Run the function on the first rank; the others return at once."""

    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        if dist.get_rank() == 0:
            return fn(*args, **kwargs)
        return None

    return wrapped
