import functools
import torch.distributed as dist

def is_main():
    return dist.get_rank() == 0

def main_only(fn):
    @functools.wraps(fn)
    def inner(*a, **k):
        if is_main():
            return fn(*a, **k)
        return None
    return inner
