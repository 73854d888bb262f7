"""What is known of the causes that stop a job: collectives, locks, processes, waits."""

from eroica.explain.knowledge import Knowledge

STUCK: dict[str, Knowledge] = {
    "rank_conditional_collective": Knowledge(
        "a collective that only some ranks reach",
        "A collective returns only when every rank of its group has called it. Here the call at "
        "{place} is reached on {ranks} only, so these ranks and the others wait in different "
        "collectives and none can return.",
        (
            "Move the collective out of the condition on the rank, or take it away if nothing "
            "after it needs the others.",
            "If only some ranks are meant to take part, make a group of them with "
            "dist.new_group() on all ranks and pass it to the call.",
        ),
        (
            "A dump of the others shows them in the same collective with the same sequence number.",
            "Every rank calls the function that holds {place}, on every path.",
        ),
    ),
    "collective_count_mismatch": Knowledge(
        "ranks issue different numbers of the same collective",
        "Collectives of a group are matched by their order, not by name. After a different "
        "number of calls at {place} the ranks pair a call with the wrong partner, or wait for a "
        "call that never comes.",
        (
            "Make the number of calls the same on all ranks: derive loop bounds and key sets "
            "from something all ranks agree on, or exchange them first (one all_gather_object).",
            "Sort keys before a loop of collectives; give absent entries a zero instead of "
            "skipping.",
        ),
        ("The Flight Recorder shows the same count of this operation on all ranks.",),
    ),
    "collective_order_mismatch": Knowledge(
        "ranks issue the same collectives in different order",
        "Two ranks call the same collectives or sends in a different order, so each waits for a "
        "partner that waits for something else; a cycle of waits cannot resolve itself.",
        (
            "Issue the calls of a group from one thread in one order on all ranks.",
            "For point-to-point, let one side receive first, or use dist.batch_isend_irecv().",
            "Give a background thread a process group of its own.",
        ),
        ("The sequence of operations is the same on all ranks up to the last one.",),
    ),
    "collective_dtype_mismatch": Knowledge(
        "operands of different types meet in one collective",
        "All ranks are in the same collective, but {ranks} brought a tensor of another type; "
        "the transport waits for bytes that never come or refuses the pair.",
        ("Cast to one dtype before the call at {place}, on all ranks.",),
        ("The dtypes recorded for this collective are equal on all ranks.",),
    ),
    "collective_shape_mismatch": Knowledge(
        "operands of different shapes meet in one collective",
        "All ranks are in the same collective, but {ranks} brought a tensor of another size; "
        "the transport waits for bytes that never come or reads beyond them.",
        (
            "Pad to a common size, or exchange sizes first and use a call that takes uneven "
            "ones (all_gather with per-rank buffers, all_to_all with split sizes).",
        ),
        ("The sizes recorded for this collective are equal on all ranks.",),
    ),
    "checkpoint_collective_on_one_rank": Knowledge(
        "a checkpoint call with collectives inside, made by some ranks only",
        "Gathering a sharded or distributed state calls collectives inside. At {place} only "
        "{ranks} make{s} the call and wait{s} for ranks that went on training.",
        (
            "Call state_dict / save on all ranks; write the file on rank 0 only.",
            "With sharded training use torch.distributed.checkpoint, which is called by all ranks.",
        ),
        ("The call does not communicate: no collective is issued below it on {ranks}.",),
    ),
    "uneven_inputs": Knowledge(
        "ranks run out of data at different steps",
        "Each step of data-parallel training needs all ranks. {ranks} {has} fewer batches and "
        "left the loop early, so the others wait in a step that stays incomplete.",
        (
            "Use DistributedSampler with drop_last=True, or stop all ranks at the smallest "
            "count (one all_reduce MIN of the length before the loop).",
            "Or wrap the loop in model.join() (Join context), which shadows the missing steps.",
        ),
        ("All ranks report the same number of batches for the epoch.",),
    ),
    "divergent_control_flow": Knowledge(
        "ranks decide differently on local data",
        "A branch at {place} depends on something each rank computes for itself (a local loss, "
        "a clock, a random number, one batch). The first time the ranks disagree, some skip "
        "collectives that the others wait in.",
        (
            "Decide together: all_reduce the flag (MAX or MIN) or broadcast it from one rank "
            "before branching.",
            "Seed randomness that steers control flow alike on all ranks.",
        ),
        ("The value tested at {place} is equal on all ranks at every step.",),
    ),
    "fork_lock_deadlock": Knowledge(
        "a child forked while a lock was held",
        "fork() copies only the calling thread. A lock that another thread held at that moment "
        "stays locked in the child for ever; the child waits at {place} and its parent waits "
        "for it.",
        (
            "Start workers before the threads, or use multiprocessing_context='spawn' or "
            "'forkserver' for the loader.",
            "Take locks and thread pools inside the worker (worker_init_fn), never before the "
            "fork.",
        ),
        ("The waiting child makes progress, or no thread of the parent ever held that lock.",),
    ),
    "thread_lock_deadlock": Knowledge(
        "threads of one rank wait for each other",
        "Threads inside {ranks} hold what the other one needs (two locks in opposite order, or "
        "a bounded queue whose reader waits for its writer). The rank stops, and all others "
        "wait for {it} in their next collective.",
        (
            "Take locks in one order everywhere, and never call out or put() on a bounded queue "
            "while holding one.",
            "Give queue operations a timeout and let them fail loudly.",
        ),
        ("One of the threads moves between two stack samples.",),
    ),
    "exception_swallowed": Knowledge(
        "an error on one rank that the others never learn of",
        "An exception on {ranks} was caught (or ended a thread) and the rank went on another "
        "way, without the collectives the others wait in.",
        (
            "Let the exception end the rank: torchrun then ends the job at once with the "
            "traceback.",
            "If the step may be skipped, agree on it: all_reduce an 'ok' flag and skip on all "
            "ranks.",
        ),
        ("{ranks} issued every collective that its peers issued.",),
    ),
    "rank_exited": Knowledge(
        "a rank ended while the others wait",
        "{ranks} {is} gone; collectives with {it} can never complete, so the rest wait until the "
        "time-out.",
        (
            "Read the exit code and the last lines of its log first: signal 9 with a full "
            "memory points at the OOM killer, signal 11 at native code.",
            "Start the job under torchrun, so that one exit ends all ranks quickly.",
        ),
        ("The process of {ranks} still runs.",),
    ),
    "blocked_io": Knowledge(
        "a read, write or connect without an end",
        "{ranks} sit{s} in a system call at {place} that has no time-out; the peers wait for it "
        "in the next collective.",
        (
            "Give the call a timeout and retry, or move it off the training thread.",
            "Check the other end: mount, object store, socket peer, full pipe.",
        ),
        ("Bytes move on that descriptor between two samples.",),
    ),
    "polling_wait": Knowledge(
        "waiting by polling for something late or never there",
        "{ranks} loop{s} with a sleep at {place} until a file, key or flag appears. If it "
        "appears late every step pays; if never, the job stands.",
        (
            "Wait on the event itself (condition, store.wait with a timeout, barrier) and bound "
            "it.",
            "Make sure the producer writes the key or file on every path, atomically.",
        ),
        ("The condition polled for is already true while the loop goes on.",),
    ),
}
