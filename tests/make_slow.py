"""Evidence of made-up slow jobs: a small program, and what sampling its ranks would show.

A stack is written outermost first: project frames by the marker comment on their line
(``"main:backward"`` is the line of ``main`` that ends in ``# backward``), library frames by name.
"""

import textwrap

from eroica.records import (
    CollectiveEntry,
    FlightRecord,
    JobEvidence,
    Place,
    RankEvidence,
    SampledStack,
    Samples,
    Setting,
    StepTimes,
)

LIBRARY = "/usr/lib/python3.11/site-packages/"
FRAMES = {
    "backward": ("Tensor.backward", "torch/_tensor.py"),
    "engine": ("_engine_run_backward", "torch/autograd/graph.py"),
    "forward": ("Module._call_impl", "torch/nn/modules/module.py"),
    "optimizer": ("Adam.step", "torch/optim/adam.py"),
    "loader": ("_BaseDataLoaderIter.__next__", "torch/utils/data/dataloader.py"),
    "fetch": ("_MapDatasetFetcher.fetch", "torch/utils/data/_utils/fetch.py"),
    "get_data": ("_MultiProcessingDataLoaderIter._try_get_data", "torch/utils/data/dataloader.py"),
    "all_reduce": ("all_reduce", "torch/distributed/distributed_c10d.py"),
    "all_gather_object": ("all_gather_object", "torch/distributed/distributed_c10d.py"),
    "barrier": ("barrier", "torch/distributed/distributed_c10d.py"),
    "repr": ("_str_intern", "torch/_tensor_str.py"),
    "dynamo": ("ConvertFrame.__call__", "torch/_dynamo/convert_frame.py"),
    "format_stack": ("format_stack", "traceback.py"),
    "queue_get": ("Queue.get", "multiprocessing/queues.py"),
    "save": ("save", "torch/serialization.py"),
}


class Program:
    """A source file of the user's and its marked lines."""

    def __init__(self, folder, source):
        self.folder = folder
        self.path = folder / "train.py"
        text = textwrap.dedent(source)
        self.path.write_text(text, encoding="utf-8")
        self.lines = {
            line.split("# ")[-1].strip(): number
            for number, line in enumerate(text.splitlines(), 1)
            if "# " in line
        }

    def place(self, spec):
        function, _, marker = spec.rpartition(":")
        return Place(name=function, file=str(self.path), line=self.lines[marker])

    def stack(self, text):
        frames = [
            self.place(word)
            if ":" in word
            else Place(name=FRAMES[word][0], file=LIBRARY + FRAMES[word][1], line=1)
            for word in text.split()
        ]
        return tuple(reversed(frames))


def samples(program, rows, threads=()):
    """Rows are (count, active, stack text); threads likewise with the thread's name in front."""
    stacks = [
        SampledStack(
            frames=program.stack(text), count=count, active_count=active, thread="MainThread"
        )
        for count, active, text in rows
    ]
    stacks += [
        SampledStack(frames=program.stack(text), count=count, active_count=active, thread=name)
        for name, count, active, text in threads
    ]
    total = sum(count for count, _, _ in rows)
    return Samples(start_ns=0, end_ns=10_000_000_000, num_samples=total, stacks=tuple(stacks))


def steps(durations_ms, data_ms=()):
    start, begin = [], 0
    for duration in durations_ms:
        start.append(begin)
        begin += int(duration * 1e6)
    return StepTimes(
        start_ns=tuple(start),
        duration_ns=tuple(int(d * 1e6) for d in durations_ms),
        data_ns=tuple(int(d * 1e6) for d in data_ms),
    )


def flight(program, rank, calls, *, num_steps=20, step_ms=50.0):
    """``calls`` happen in each step in order: (op, stack text, elements)."""
    entries = []
    for step in range(num_steps):
        for position, (op, text, elements) in enumerate(calls):
            at = step * step_ms + 0.3 * step_ms + position * 0.6 * step_ms / len(calls)
            entries.append(
                CollectiveEntry(
                    record_id=len(entries),
                    op=op,
                    backend="gloo",
                    group="0",
                    sequence=len(entries) + 1,
                    input_sizes=((elements,),),
                    input_dtypes=("Float",),
                    created_ns=int(at * 1e6),
                    is_retired=True,
                    frames=program.stack(text),
                )
            )
    return FlightRecord(rank=rank, version="2.10", groups={}, entries=tuple(entries))


def setting(program, key, value, *specs):
    return Setting(key=key, value=value, places=tuple(program.place(s) for s in specs))


def job(program, ranks):
    """``ranks`` are keyword arguments of RankEvidence, one a rank."""
    return JobEvidence(
        ranks=tuple(RankEvidence(rank=i, host="host0", **one) for i, one in enumerate(ranks)),
        world_size=len(ranks),
        backend="gloo",
        source_root=str(program.folder),
    )
