"""Set-ups that cost: DDP's buckets, loaders and who splits their data, hooks that measure."""

from pathlib import Path

import msgspec
import pytest

from eroica.localize import localize_slow
from eroica.localize.source import Project
from eroica.summarize import summarize_samples
from tests.make_slow import FRAMES, Program, flight, job, samples, setting, steps

SOURCE = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler


class Clips(Dataset):
    def __len__(self):
        return 600


class Part(Dataset):
    def __init__(self):
        self.files = files[dist.get_rank() :: dist.get_world_size()]


class Stream(IterableDataset):
    def __iter__(self):
        for line in self.lines:  # stream
            yield line


class Dealing(IterableDataset):
    def __iter__(self):
        for line in self.lines[get_worker_info().id :: get_worker_info().num_workers]:
            yield line


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            for line in self.lines:
                yield line


class Guard(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args)  # operation
        check(out)  # check
        return out


class Quantized(torch.Tensor):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*map(unpack, args))  # quantized


def cycle(loader):
    while True:
        yield from loader  # cycle


class Lengths(Sampler):
    def __iter__(self):
        return iter(by_length(self.data))


class Dealt(Sampler):
    def __iter__(self):
        return iter(by_length(self.data)[self.rank :: self.world_size])


class Probe:
    def __init__(self, net):
        for module in net:
            module.register_forward_hook(self.watch(module))

    def watch(self, module):
        def measure(module, args, out):
            self.values = out.sort()  # measure

        def adapt(module, args, out):
            return out + self.low(out)  # adapt

        return adapt if self.is_adapting else measure


class Stage:
    def first(self, parts):
        for part in parts:
            dist.recv(part, 1)  # recv


class Net:
    def forward(self, x):
        return self.layers(x)  # layers


def main():
    model = DDP(net, bucket_cap_mb=0.01)  # wrap
    loader = DataLoader(Clips(), sampler=draw(Clips()))  # loader
    parts = DataLoader(Part(), shuffle=True)  # parts
    for x in loader:
        loss = model(x)  # forward
        x = next(cycled)  # next
        stage.first(x)  # stage
        loss.backward()  # backward
        optimizer.step()  # step
"""


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path, SOURCE)


def ranks(program, rows, settings=(), calls=()):
    return [
        {
            "samples": samples(program, rows),
            "settings": settings,
            "steps": steps([50.0] * 20),
            **({"flight": flight(program, rank, calls)} if calls else {}),
        }
        for rank in range(2)
    ]


def diagnose(program, rows, settings=(), calls=()):
    return localize_slow([], evidence=job(program, ranks(program, rows, settings, calls)))


TRAINING = [
    (120, 20, "main:backward backward engine"),
    (40, 40, "main:forward forward"),
    (20, 20, "main:step optimizer"),
]


def buckets(program, cap, number, elements=600):
    settings = (setting(program, "ddp", {"bucket_cap_mb": cap}, "main:wrap"),)
    return diagnose(
        program,
        TRAINING,
        settings,
        [("all_reduce", "main:backward backward engine", elements)] * number,
    )


def test_buckets_of_a_kilobyte_are_many_small_collectives_where_ddp_was_made(program):
    (cause,) = buckets(program, 0.001, 40).causes
    assert (cause.category, cause.ranks) == ("excessive_small_collectives", "all")
    assert [(f.name, f.line) for f in cause.functions] == [
        ("main", program.lines["wrap"]),
        ("main", program.lines["backward"]),
    ]
    assert cause.share == pytest.approx(100 / 180 * (1 - 1 / 40), abs=0.01)


@pytest.mark.parametrize(
    ("cap", "number", "elements"),
    [(25.0, 40, 600), (0.001, 7, 600), (None, 40, 600), (0.9, 40, 80_000)],
)
def test_usual_few_unknown_or_large_buckets_are_no_cause(program, cap, number, elements):
    assert not buckets(program, cap, number, elements).causes


def loader(program, place="main:loader", **value):
    usual = {
        "num_workers": 0,
        "sampler": "RandomSampler",
        "batch_sampler": "BatchSampler",
        "dataset": "Clips",
        "dataset_len": 600,
        "iterators_started": 1,
    }
    return diagnose(program, TRAINING, (setting(program, "dataloader", usual | value, place),))


@pytest.mark.parametrize(
    "value",
    [
        {"sampler": "WeightedRandomSampler", "sampler_len": 600},
        {"sampler": "Lengths", "sampler_len": 600},
        {"batch_sampler": "Lengths", "sampler": "SequentialSampler"},
    ],
)
def test_samplers_that_draw_as_many_as_there_are_read_everything_on_every_rank(program, value):
    (cause,) = loader(program, **value).causes
    assert (cause.category, cause.ranks) == ("sampler_misconfiguration", "all")
    assert cause.functions[0].line == program.lines["loader"]


@pytest.mark.parametrize(
    "value",
    [
        {"sampler": "WeightedRandomSampler", "sampler_len": 300},
        {"sampler": "WeightedRandomSampler", "sampler_len": None},
        {"sampler": "Dealt", "sampler_len": 600},
        {"sampler": "FromALibrary", "sampler_len": 600},
        {"batch_sampler": "Dealt", "sampler": "SequentialSampler"},
        {"batch_sampler": "FromALibrary", "sampler": "SequentialSampler"},
        {"dataset": "Part"},
    ],
)
def test_what_is_split_or_cannot_be_read_is_no_cause(program, value):
    assert not loader(program, **value).causes


def test_a_data_set_that_splits_itself_is_seen_where_it_is_made(program):
    assert not loader(program, "main:parts", dataset="Subset").causes


def test_a_forward_hook_that_measures_is_no_part_of_the_model(program):
    rows = [(90, 90, "main:forward forward Probe.watch.<locals>.measure:measure"), *TRAINING]
    (cause,) = diagnose(program, rows).causes
    assert (cause.category, cause.ranks) == ("python_overhead", "all")
    assert cause.functions[0].line == program.lines["measure"]
    assert cause.share == pytest.approx(90 / 270, abs=0.01)


def test_a_hook_that_gives_an_output_back_is_the_models_work(program):
    rows = [(90, 90, "main:forward forward Probe.watch.<locals>.adapt:adapt"), *TRAINING]
    assert not diagnose(program, rows).causes


def test_the_models_own_forward_is_no_hook(program):
    rows = [(90, 90, "main:forward forward Net.forward:layers"), *TRAINING]
    assert not diagnose(program, rows).causes


def test_a_setting_comes_after_what_changed_since_the_job_was_healthy(program):
    usual = {"sampler": "RandomSampler", "dataset": "Clips", "dataset_len": 600}
    settings = (setting(program, "dataloader", usual, "main:loader"),)
    rows = [(60, 60, "main:forward forward Probe.watch.<locals>.measure:measure"), *TRAINING]
    evidence = job(program, ranks(program, rows, settings))
    fresh = localize_slow([], evidence=evidence)
    assert [c.category for c in fresh.causes] == ["sampler_misconfiguration", "python_overhead"]
    past = summarize_samples(evidence.ranks[0].samples, rank=0, project_root=str(program.folder))
    after = localize_slow([], evidence=evidence, baseline=[past])
    assert [c.category for c in after.causes] == ["python_overhead", "sampler_misconfiguration"]
    assert any("before the job became slow" in text for text in after.causes[1].against)


@pytest.mark.parametrize(
    ("asked", "waiting", "is_cause"),
    [("12", 3e8, True), ("12", 2e8, False), ("3", 3e8, False)],
)
def test_threads_set_far_over_the_cores_are_too_many_though_a_library_uses_fewer(
    program, asked, waiting, is_cause
):
    told = (
        setting(program, "num_threads", 2, "main:wrap"),
        setting(program, "env.OMP_NUM_THREADS", asked),
        setting(program, "cpu_affinity", 2),
        setting(program, "local_world_size", 2),
        setting(program, "cpu.schedule", {"on_cpu_ns": 1e9, "waiting_ns": waiting}),
    )
    found = [cause.category for cause in diagnose(program, TRAINING, told).causes]
    assert found == ["cpu_oversubscription"] * is_cause


def test_a_stage_that_waits_for_messages_makes_no_needless_collectives(program, monkeypatch):
    c10d = "torch/distributed/distributed_c10d.py"
    monkeypatch.setitem(FRAMES, "recv", ("recv", c10d))
    stack = "main:stage Stage.first:recv {}"
    rows = [(200, 5, stack.format("recv")), *TRAINING]
    assert not diagnose(program, rows).causes
    calls = [("recv", stack.format("recv"), 64)] * 12
    assert not diagnose(program, rows, calls=calls).causes
    reduced = [(200, 5, stack.format("all_reduce")), *TRAINING]
    (cause,) = diagnose(program, reduced).causes
    assert cause.category == "excessive_small_collectives"


DDP = "torch/nn/parallel/distributed.py"


@pytest.mark.parametrize(
    ("times", "is_cause"), [((100, 100), True), ((100, 15), False), ((0, 0), False)]
)
def test_buffers_that_every_rank_waits_for_before_each_forward(
    program, monkeypatch, times, is_cause
):
    monkeypatch.setitem(FRAMES, "sync", ("DistributedDataParallel._sync_buffers", DDP))
    monkeypatch.setitem(FRAMES, "ddp", ("DistributedDataParallel.forward", DDP))
    settings = (setting(program, "ddp", {"bucket_cap_mb": 25.0}, "main:wrap"),)
    evidence = job(
        program,
        [
            ranks(program, [(time, 5, "main:forward ddp sync"), *TRAINING], settings)[0]
            for time in times
        ],
    )
    causes = [c for c in localize_slow([], evidence=evidence).causes if "buffers" in c.summary]
    assert [(c.category, c.ranks) for c in causes] == [
        ("redundant_gradient_sync", "all")
    ] * is_cause
    for cause in causes:
        assert cause.functions[0].line == program.lines["wrap"]
        assert cause.share == pytest.approx(100 / 280, abs=0.01)


@pytest.mark.parametrize(
    ("dataset", "workers", "is_cause"),
    [
        ("Stream", 3, True),
        ("Stream", 1, False),
        ("Dealing", 3, False),
        ("Endless", 3, False),
        ("Elsewhere", 3, False),
    ],
)
def test_a_stream_that_no_worker_splits_is_read_as_often_as_there_are_workers(
    program, dataset, workers, is_cause
):
    found = loader(
        program,
        dataset=dataset,
        num_workers=workers,
        sampler="_InfiniteConstantSampler",
        dataset_len=None,
    ).causes
    assert [c.category for c in found] == ["sampler_misconfiguration"] * is_cause
    for cause in found:
        lines = [function.line for function in cause.functions]
        assert lines == [program.lines["stream"], program.lines["loader"]]


@pytest.mark.parametrize(
    ("frame", "is_cause"),
    [
        ("Guard.__torch_dispatch__:check", True),
        ("Guard.__torch_dispatch__:operation", False),
        ("Quantized.__torch_dispatch__:quantized", False),
    ],
)
def test_a_dispatch_mode_costs_what_it_does_beside_the_operation(program, frame, is_cause):
    rows = [(90, 90, f"main:forward forward {frame}"), *TRAINING]
    causes = diagnose(program, rows).causes
    assert [c.category for c in causes] == ["debug_setting_left_on"] * is_cause
    for cause in causes:
        assert cause.functions[0].line == program.lines["check"]
        assert cause.share == pytest.approx(90 / 270, abs=0.01)


def test_a_slow_loader_behind_a_generator_is_slow_loading_whatever_its_class_is_called(program):
    read = "main:next cycle:cycle loader fetch Clips.records:layers"
    fast, slow = (ranks(program, [(count, count, read), *TRAINING])[0] for count in (2, 150))
    fast["samples"] = samples(program, [(2, 2, read), (268, 20, TRAINING[0][2]), *TRAINING[1:]])
    causes = localize_slow([], evidence=job(program, [fast, slow, fast])).causes
    assert (causes[0].category, causes[0].ranks) == ("straggler_data_loading", (1,))


def test_calls_at_impossible_times_are_left_out(program):
    calls = [("all_reduce", "main:backward backward engine", 600)] * 3
    one = ranks(program, TRAINING, calls=calls)[0]
    entries = one["flight"].entries
    odd = msgspec.structs.replace(entries[0], created_ns=10**30)
    one["flight"] = msgspec.structs.replace(one["flight"], entries=(odd, *entries[1:]))
    assert localize_slow([], evidence=job(program, [one, one])).symptom == "healthy"


def test_folders_that_may_not_be_looked_into_are_left_out(program, monkeypatch):
    (program.folder / "closed").mkdir()
    (program.folder / "closed" / "a.py").write_text("x = 1\n")
    exists = Path.exists

    def refuse(path, **more):
        if "closed" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path, **more)

    monkeypatch.setattr(Path, "exists", refuse)
    names = [module.path.name for module in Project(program.folder).modules]
    assert names == ["train.py"]
