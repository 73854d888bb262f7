"""What is known of the causes that slow a job: communication, host, data, compute, environment."""

from eroica.explain.knowledge import Knowledge

SLOW: dict[str, Knowledge] = {
    "excessive_small_collectives": Knowledge(
        "many small collectives where one would do",
        "Each collective costs latency on every rank, whatever its size. At {place} many tiny "
        "ones run one after the other in each step.",
        (
            "Put the values into one tensor and reduce it once, every N steps if it is only for "
            "logs.",
        ),
        ("The number of collectives in a step is the same without {place}.",),
    ),
    "excessive_object_collectives": Knowledge(
        "Python objects exchanged in the step",
        "Object collectives pickle, exchange sizes, then bytes, and synchronize all ranks; at "
        "{place} they run inside the step.",
        (
            "Exchange tensors, or gather objects once an epoch instead of once a step.",
            "Drop what nobody reads.",
        ),
        ("Step time does not change when the call is made every 100th step.",),
    ),
    "excessive_barriers": Knowledge(
        "barriers in the step",
        "A barrier makes every step as slow as its slowest rank and hides no communication. "
        "Collectives order the ranks already.",
        ("Take the barrier at {place} away, or keep it outside the step.",),
        ("Without the barrier the waiting reappears in full in the next collective.",),
    ),
    "redundant_gradient_sync": Knowledge(
        "gradients exchanged more often than needed",
        "Gradients or weights go over the network more often, or are searched for more, than "
        "the update needs, at {place}.",
        (
            "With gradient accumulation wrap all but the last micro-batch in model.no_sync().",
            "Leave the exchange to DDP's buckets; do not all_reduce parameters one by one.",
            "Turn find_unused_parameters off where all parameters are used; use static_graph.",
        ),
        ("The number of gradient bytes a step equals the size of the parameters.",),
    ),
    "logging_overhead": Knowledge(
        "logging or metrics in the step on all ranks",
        "Work for people (histograms, text, files) runs on the training thread at {place} and "
        "every step waits for it.",
        (
            "Log every N steps, hand it to a background thread, and only on one rank.",
            "Keep tensors on the device and call .item() once per logging interval.",
        ),
        ("Step time stays when the logging call returns at once.",),
    ),
    "straggler_rank_logging": Knowledge(
        "logging on one rank that holds the others",
        "{ranks} write{s} logs or metrics on the training thread at {place}; the others wait "
        "for it in the next collective.",
        (
            "Write less often, or hand a detached copy to a background thread.",
            "Keep the amount small: reduce on the device before it is written.",
        ),
        ("The wait of the others stays when {ranks} do{es} not log.",),
    ),
    "growing_state": Knowledge(
        "work that grows with the number of steps done",
        "Something at {place} is kept for every step and gone through again each time, so the "
        "step time rises without an end.",
        (
            "Keep a running sum or a bounded window (deque(maxlen=...)) instead of the whole "
            "history.",
            "Detach what is kept: a stored loss keeps its graph alive.",
        ),
        ("Step time is flat over the same number of steps after a restart.",),
    ),
    "gc_pause": Knowledge(
        "garbage collection inside steps, at different times on the ranks",
        "A collection stops the Python thread of one rank; every rank waits for it in the next "
        "collective. With N ranks collecting at different steps nearly every step has a pause.",
        (
            "gc.disable() (or gc.freeze() after set-up) and collect on all ranks at the same "
            "step, every few hundred steps.",
            "Take explicit gc.collect() calls out of the step.",
        ),
        ("The pauses stay with gc.disable().",),
    ),
    "checkpoint_overhead": Knowledge(
        "saving too often or in the way",
        "The checkpoint at {place} is written on the training thread; all ranks stand until the "
        "storage has it.",
        (
            "Save less often, or asynchronously (torch.distributed.checkpoint.async_save).",
            "Copy to host memory in the step, write from a thread.",
        ),
        ("Step time around a save equals step time elsewhere.",),
    ),
    "serialized_on_rank0": Knowledge(
        "the others wait while one rank works alone",
        "{ranks} do{es} work at {place} (evaluation, export, preparation) that the others wait "
        "for.",
        (
            "Share the work among all ranks (a DistributedSampler for evaluation, one "
            "all_reduce of the sums).",
            "Or do it in a process of its own, off the training ranks.",
        ),
        ("The others are not waiting while {ranks} {is} in {place}.",),
    ),
    "host_sync": Knowledge(
        "forced synchronizations with the device",
        "A call at {place} makes the host wait for the device, so no further work is queued and "
        "the device idles after each.",
        (
            "Take .item(), .cpu(), print(tensor) and boolean tests of tensors out of the step; "
            "accumulate on the device.",
            "Use non_blocking copies from pinned memory.",
        ),
        ("The device has queued work at the moment of the call.",),
    ),
    "python_overhead": Knowledge(
        "slow Python in the step",
        "The interpreter spends the time at {place}; the device or the peers wait for it.",
        ("Vectorize the loop, cache what does not change, or move it to loader workers.",),
        ("Step time stays when the function returns a stored result.",),
    ),
    "dataloader_bottleneck": Knowledge(
        "all ranks wait for data",
        "Batches come slower than they are used: loading at {place} is on the step's path on "
        "every rank.",
        (
            "Give the DataLoader workers (num_workers, persistent_workers=True, "
            "prefetch_factor) and pinned memory.",
            "Do expensive preparation once and store it; return tensors, not Python lists.",
        ),
        ("Step time stays when the loader yields one cached batch.",),
    ),
    "straggler_data_loading": Knowledge(
        "one rank waits for data and holds the others",
        "{ranks} load{s} more slowly than {its} peers at {place}; they wait for {it} in the "
        "gradient exchange.",
        (
            "Compare its shard, storage path, worker count and host load with a peer's.",
            "Balance the shards; cache remote data on the host.",
        ),
        (
            "The slow loading stays with the shard, or stays with the host, after the two are "
            "swapped.",
        ),
    ),
    "sampler_misconfiguration": Knowledge(
        "ranks read what they should not",
        "The sampler at {place} gives ranks data that others read too, or all of it; work is "
        "done several times and an epoch is longer than it should be.",
        (
            "Use DistributedSampler (and set_epoch every epoch), or shard an iterable dataset "
            "by rank and worker.",
        ),
        ("The indices of two ranks are disjoint and cover the set once.",),
    ),
    "straggler_compute": Knowledge(
        "one rank computes slower with the same work",
        "{ranks} need{s} longer for the same functions; everyone waits for {it} in the "
        "collectives.",
        ("Look for other processes, clocks and temperature on its host; then swap the host.",),
        ("Its inputs are larger than {its} peers', which would be load_imbalance.",),
    ),
    "cpu_oversubscription": Knowledge(
        "more runnable threads than cores",
        "Ranks, loader workers and thread pools of {ranks} together run more threads than the "
        "host has cores; each is descheduled while the others wait for it.",
        (
            "Set OMP_NUM_THREADS (or torch.set_num_threads) to cores / local ranks, and keep "
            "pools and worker counts within the rest.",
        ),
        ("The threads' run-queue wait in /proc/<pid>/schedstat is near zero.",),
    ),
    "load_imbalance": Knowledge(
        "unequal or wasted work",
        "{ranks} {has} more work per step than {its} peers (longer sequences, more padding, more "
        "tokens), and each step lasts as long as the largest share.",
        (
            "Distribute by cost, not by count: length-bucketed batches dealt over all ranks, or "
            "a token budget per batch.",
        ),
        ("The work per step (tokens, padded size) is equal over ranks.",),
    ),
    "recompilation": Knowledge(
        "compiling again and again",
        "The compiled function at {place} is specialized on a value or shape that keeps "
        "changing, so steps pay for compilation.",
        (
            "Mark the varying dimension dynamic (torch._dynamo.mark_dynamic or dynamic=True), "
            "pad to a few sizes, or pass changing scalars as tensors.",
            "TORCH_LOGS=recompiles names the failing guard.",
        ),
        ("No recompilation is logged in the slow steps.",),
    ),
    "debug_setting_left_on": Knowledge(
        "an expensive debug switch is on",
        "A debugging aid is active in production at {place}; it checks or records on every "
        "operation.",
        ("Turn it off, or guard it by a flag that defaults to off.",),
        ("Step time stays with the switch off.",),
    ),
    "straggler_network": Knowledge(
        "a rank with a slow link",
        "{ranks} move{s} data slower than {its} peers; a ring or tree runs at the speed of its "
        "slowest link, so all ranks wait.",
        (
            "Drain {hosts}; check link speed, errors, cabling and the switch port.",
            "No change of code helps.",
        ),
        ("The rate of its peers in the same group is as low.",),
    ),
    "nic_degraded": Knowledge(
        "a network card below its rate",
        "The links of {hosts} run below their peers' rate, steadily; neighbors burst and wait.",
        (
            "Drain {hosts}; look at `ibstat`, link width and speed, symbol and retransmission "
            "counters, and PCIe state of the card.",
            "No change of code helps.",
        ),
        ("Moving the ranks to another host leaves them as slow.",),
    ),
    "nvlink_degraded": Knowledge(
        "an NVLink that is down or retrains",
        "Traffic within {hosts} goes a slower way than {its} peers' does.",
        ("Drain {hosts}; look at `nvidia-smi nvlink --status` and -e, then at dmesg for Xid 74.",),
        ("All links are up with equal error counters, and `nccl-tests` reaches the peers' rate.",),
    ),
    "pcie_degraded": Knowledge(
        "a PCIe link below its width or speed",
        "Copies between host and device on {ranks} are slower than on {its} peers.",
        (
            "Drain {hosts}; compare LnkSta with LnkCap in `lspci -vv`, and the NUMA node of the "
            "process with that of the device.",
        ),
        ("Link width and speed are at their caps under load.",),
    ),
    "gpu_throttled": Knowledge(
        "a GPU that runs below its clock",
        "{ranks} compute{s} the same kernels slower than {its} peers because of a lower clock "
        "(power, heat).",
        ("Drain {hosts}; look at `nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE`.",),
        ("Clock and throttle reasons are those of its peers under the same load.",),
    ),
    "gpu_fault": Knowledge(
        "a faulty GPU",
        "The device of {ranks} reported an error; what runs on it can hang or be wrong.",
        ("Drain {hosts}; keep `nvidia-bug-report.sh` and dmesg (Xid), then reset or replace.",),
        ("No Xid or ECC event since boot on that device.",),
    ),
    "memory_pressure": Knowledge(
        "a host short of memory",
        "{hosts} reclaims or swaps memory; processes on it stop in page faults or are killed.",
        ("Lower loader workers and prefetch or caches; check for other jobs on {hosts}.",),
        ("/proc/pressure/memory is zero and no major faults are counted.",),
    ),
}
