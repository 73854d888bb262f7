"""What a rank that holds the others does, and what to do about it, in words, by category."""

ADVICE = {
    "straggler_data_loading": "Make its data as cheap as its peers': cache or preprocess it, "
    "spread the expensive samples over ranks, give the loader workers.",
    "serialized_on_rank0": "Spread the work over ranks, do it less often, or off the training "
    "path, so that nobody waits.",
    "straggler_rank_logging": "Write less and less often, or from a background thread.",
    "straggler_compute": "If its work is the same, look at the host: clocks, other processes, "
    "temperature. If not, balance it.",
    "load_imbalance": "Balance by work, not by number of samples: stride or bucket by length.",
    "straggler_network": "Drain the host, then look at its link, NIC counters and cabling; no "
    "change of code will help.",
    "checkpoint_overhead": "Save less often, or copy to host memory and write in the background.",
    "gc_pause": "Collect at the same step on all ranks, or freeze long-lived objects.",
    "recompilation": "Give that rank the shapes the others have, or mark the dimension dynamic.",
}


def does(category: str, at: str, count: int) -> str:
    """Return what ``count`` ranks do, e.g. ``loads data slowly at data.py:12 read``."""
    s = "s" if count == 1 else ""
    what = {
        "straggler_data_loading": f"load{s} data slowly",
        "serialized_on_rank0": f"work{s} alone",
        "straggler_rank_logging": f"write{s} logs or metrics",
        "checkpoint_overhead": f"save{s} checkpoints",
        "straggler_network": f"communicate{s} slowly",
        "load_imbalance": f"ha{'s' if count == 1 else 've'} more to compute",
        "gc_pause": f"collect{s} garbage",
        "recompilation": f"recompile{s}",
    }.get(category, f"compute{s} slower")
    return f"{what} at {at}" if at else what
