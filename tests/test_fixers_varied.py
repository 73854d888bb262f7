"""Programs that nobody has seen: every fixer's examples in other words, layouts and imports."""

import libcst as cst
import pytest
from make_variations import VARIATIONS

from eroica.fix.context import Example
from eroica.fix.diff import file_edit
from eroica.fix.examples import FILE, context_of, outcome, source_of
from eroica.fix.gates import check
from eroica.fix.loops import step_loops
from eroica.fix.ranks import is_ranked
from eroica.fix.registry import find_fixer, load_fixers
from eroica.fix.tree import Source, code

FIXERS = load_fixers()
VARIED = [
    pytest.param(fixer, example, text, id=f"{code}-{number}-{how}")
    for code, fixer in FIXERS.items()
    for number, example in enumerate(fixer.FIXES, 1)
    for how, varied in VARIATIONS.items()
    if (text := varied(example.before)) != example.before
]


@pytest.mark.parametrize(("fixer", "example", "text"), VARIED)
def test_an_example_in_other_words_gets_a_sound_patch_too(fixer, example, text):
    varied = Example(
        before=text, category=example.category, settings=example.settings, symptom=example.symptom
    )
    before, marked = source_of(varied)
    assert marked, "the variation lost the mark"
    if "\t" in text:  # tabs and Windows line ends come together
        before = before.replace("\n", "\r\n")
    made = outcome(fixer, varied, text=before)
    assert made is not None
    assert [gate for gate in check([file_edit(FILE, before, made)]) if not gate.passed] == []
    assert ("\r\n" in made) is ("\r\n" in before)


def patched(code, text, category, symptom="slow"):
    """What a fixer makes of a program; None where it offers nothing."""
    return outcome(find_fixer(code), Example(before=text, category=category, symptom=symptom))


def test_a_queue_called_queue_does_not_hide_the_module_of_that_name():
    text = """\
def run(queue, sink):
    while True:
        if queue.empty():  # <-- here
            continue
        sink(queue.get())
        item = queue.get()
"""
    text = text.replace("        sink(queue.get())\n", "")
    made = patched("POL001", text, "polling_wait")
    assert "import queue as queue_module" in made
    assert "except queue_module.Empty:" in made


NCCL = """\
import torch
import torch.distributed as dist

def main():
    dist.init_process_group("nccl")

def train(model, batches):
    for x in batches:  # <-- here
        loss = model(x)
        loss.backward()
        dist.all_reduce(loss)
"""


@pytest.mark.parametrize(
    ("text", "device"),
    [
        (NCCL, 'while_all_have(batches, device="cuda")'),
        (
            NCCL + "\nCUDA = torch.cuda.is_available()\n",
            'while_all_have(batches, device="cuda" if torch.cuda.is_available() else "cpu")',
        ),
        (NCCL.replace("nccl", "gloo"), "while_all_have(batches)"),
    ],
)
def test_what_is_reduced_lies_where_the_jobs_collectives_take_it(text, device):
    assert f"for x in {device}:" in patched("UNE001", text, "uneven_inputs")


def test_a_shuffle_given_by_position_is_switched_off_beside_the_sampler():
    text = """\
from torch.utils.data import DataLoader

def build(ds):
    return DataLoader(ds, 8, True)  # <-- here
"""
    made = patched("SMP002", text, "sampler_misconfiguration")
    assert "DataLoader(ds, 8, False, sampler=sampler)" in made


def test_the_epoch_is_told_to_a_sampler_that_another_function_made():
    text = """\
from torch.utils.data import DataLoader

class Trainer:
    def __init__(self, ds):
        self.loader = DataLoader(ds, batch_size=8, shuffle=True)  # <-- here

    def fit(self, epochs):
        for epoch in range(epochs):
            for x in self.loader:
                step(x)
"""
    made = patched("SMP002", text, "sampler_misconfiguration")
    assert "            self.loader.sampler.set_epoch(epoch)\n            for x in" in made


def test_a_lock_of_a_class_is_not_renewed_as_if_it_were_the_modules():
    text = """\
import threading

class Log:
    lock = threading.Lock()

    def write(self, text):
        with self.lock:  # <-- here
            print(text)
"""
    assert patched("FRK001", text, "fork_lock_deadlock") is None


def test_send_and_receive_keep_their_group_and_their_tensors():
    text = """\
import torch.distributed as dist

def exchange(out, inp, peer, ring):
    dist.send(dst=peer, tensor=out, group=ring)  # <-- here
    dist.recv(inp, src=peer, group=ring, tag=3)
"""
    made = patched("P2P001", text, "collective_order_mismatch")
    assert "dist.P2POp(dist.isend, out, peer, group=ring)," in made
    assert "dist.P2POp(dist.irecv, inp, peer, group=ring, tag=3)," in made


@pytest.mark.parametrize(
    ("call", "made"),
    [
        ("urllib.request.urlopen(url, None, 5)", None),
        ("urllib.request.urlopen(url)", "urllib.request.urlopen(url, timeout=60)"),
        ("requests.get(url, timeout=None)", "requests.get(url, timeout=60)"),
        ("requests.get(url, **options)", None),
        ("httpx.get(url)", None),  # waits five seconds by itself
        ("psycopg2.connect(url)", "psycopg2.connect(url, connect_timeout=60)"),
    ],
)
def test_a_limit_is_named_as_the_call_names_it_and_given_once(call, made):
    text = f"import httpx, psycopg2, requests, urllib.request\n\ndef f(url, options):\n    {call}"
    result = patched("IO002", f"{text}  # <-- here\n", "blocked_io")
    assert (result is None) if made is None else (f"    {made}\n" in result)


def test_names_in_use_are_not_given_to_new_lists():
    text = """\
import torch
import torch.distributed as dist

def average(model, parts, flat):
    for p in model.parameters():
        dist.all_reduce(p.grad)  # <-- here
    return parts, flat
"""
    made = patched("COM001", text, "excessive_small_collectives")
    assert "parts_ = [p.grad for p in model.parameters()]" in made
    assert "dist.all_reduce(flat_)" in made


def test_a_loop_that_counts_by_hand_and_asks_with_not_has_an_interval():
    text = """\
import torch

def train(model, data, rank):
    done = 0
    for x in data:
        model(x).backward()
        done += 1
        if rank == 0 and not done % 5:
            torch.save(model.state_dict(), "last.pt")  # <-- here
"""
    assert "not done % 50:" in patched("CKP002", text, "checkpoint_overhead")


def test_a_file_read_by_a_path_of_several_parts_is_parsed_once():
    text = """\
import os

class Words:
    def __getitem__(self, i):
        words = open(os.path.join(self.root, "words"), encoding="utf-8").read().split()  # <-- here
        return words[i]
"""
    made = patched("DAT006", text, "dataloader_bottleneck")
    assert 'return open(path, encoding="utf-8").read().split()' in made
    assert 'words = parsed_once(os.path.join(self.root, "words"))' in made


def test_what_is_moved_keeps_its_comment():
    text = """\
import os
import torch.distributed as dist

def load(path):
    if not os.path.exists(path):
        build(path)
        dist.barrier()  # all wait  # <-- here
"""
    made = patched("COL003", text, "rank_conditional_collective")
    assert made.endswith("        build(path)\n    dist.barrier()  # all wait\n")


def test_the_context_of_an_example_knows_its_lines():
    fixer = FIXERS["COL001"]
    assert context_of(fixer, fixer.FIXES[0]).spots[0].line == 5


TRAINER = """\
class Trainer:
    def fit(self, loader):
        for epoch in range(3):
            self.train_epoch(loader)

    def train_epoch(self, loader):
        for step, x in enumerate(loader):  # <-- here
            self.step(x)

    def step(self, x):
        self.forward_backward(x)
        self.opt.step()

    def forward_backward(self, x):
        self.model(x).backward()
"""


def test_the_loop_over_steps_is_found_two_calls_above_the_backward_pass_not_that_over_epochs():
    made = patched("GC002", TRAINER, "gc_pause")
    assert "            self.step(x)\n            if step % 100 == 0:\n" in made
    assert "epoch %" not in made


def test_parts_of_one_batch_are_no_steps():
    text = TRAINER.replace(
        "        self.model(x).backward()",
        "        for part in x.chunk(4):\n            self.model(part).backward()",
    )
    source = Source("a.py", text)
    assert [code(loop.target) for loop in step_loops(source, (source,))] == ["step, x", "part"]


@pytest.mark.parametrize(
    "test",
    [
        "rank == 0", "not rank", "self.rank == 0", "args.local_rank in (-1, 0)",
        'int(os.environ.get("RANK", "0")) == 0', 'os.getenv("LOCAL_RANK") == "0"',
        'os.environ["SLURM_PROCID"] == "0"', "dist.get_rank(group) == 0", "hvd.rank() == 0",
        "self._rank() == 0", "mpu.get_data_parallel_rank() == 0", "is_rank_zero()",
        "utils.is_main_process()", "accelerator.is_main_process", "xm.is_master_ordinal()",
        "not dist.is_initialized() or dist.get_rank() == 0",
    ],
)  # fmt: skip
def test_a_condition_on_the_rank_is_known_in_all_its_forms_by_fixers_and_by_the_gate(test):
    assert is_ranked(cst.parse_expression(test))
    head = "import os\nimport torch.distributed as dist\n\ndef f(self, rank, args):\n"
    after = f"{head}    if {test}:\n        dist.barrier()\n"
    gates = check([file_edit("a.py", f"{head}    pass\n", after)])
    assert not next(gate for gate in gates if gate.name == "collectives").passed


@pytest.mark.parametrize(
    "test",
    ["args.lora_rank == 0", "ranking == 0", "max_rank > 3", "dist.get_global_rank(g, 0) == 3",
     'os.environ["RANKS"] == "0"', "torch.linalg.matrix_rank(x) == 0", 'table["RANK"] == 1'],
)  # fmt: skip
def test_other_ranks_than_this_processs_are_none(test):
    assert not is_ranked(cst.parse_expression(test))


HEAD = "import torch\nimport torch.distributed as dist\n\n"


def test_a_gradient_that_may_be_none_is_asked_itself_and_not_its_data():
    text = """\
def sync(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad.data)  # <-- here
"""
    made = patched("COM001", HEAD + text, "excessive_small_collectives")
    assert "[p.grad.data for p in model.parameters() if p.grad is not None]" in made


def test_batches_taken_by_hand_end_for_all_ranks_together():
    text = """\
def train(model, loader):
    it = iter(loader)
    while True:
        try:
            x = next(it)  # <-- here
        except StopIteration:
            break
        model(x).sum().backward()
"""
    made = patched("UNE001", HEAD + text, "uneven_inputs", "stuck")
    assert "    it = iter(while_all_have(loader))\n" in made


@pytest.mark.parametrize("test", ["q.empty()", "q.qsize() == 0", "not q.qsize()", "(q.empty())"])
def test_a_queue_that_is_asked_in_a_circle_is_waited_on(test):
    text = f"""\
import time

def take(q):
    while True:
        if {test}:
            time.sleep(0.05)  # <-- here
            continue
        return q.get()
"""
    made = patched("POL001", text, "polling_wait")
    assert (
        "        try:\n            return q.get(timeout=0.2)\n        except queue.Empty:\n" in made
    )
    waits = f"import time\n\ndef take(q):\n    while {test}:  # <-- here\n        time.sleep(1)\n"
    made = patched("POL002", f"{waits}    return q.get()\n", "polling_wait")
    assert made.endswith("def take(q):\n    return q.get()\n")


@pytest.mark.parametrize(
    ("lines", "after"),
    [
        (["lo = rank * per", "hi = lo + per"], "rows[rank:per * world:world]"),
        (["lo = per * rank", "hi = (rank + 1) * per"], "rows[rank:per * world:world]"),
        (["lo = rank * per", "hi = lo + 2"], None),
        (["lo = seed * per", "hi = lo + per"], None),
    ],
)
def test_a_block_cut_by_named_bounds_is_dealt_in_turn(lines, after):
    text = "\n    ".join(["def mine(rows, rank, world, seed):", "per = len(rows) // world", *lines])
    made = patched("SMP001", f"{text}\n    return rows[lo:hi]  # <-- here\n", "load_imbalance")
    assert (made is None) if after is None else made.endswith(f"return {after}\n")


@pytest.mark.parametrize(
    "waits", ["for p in procs:\n        p.wait()", "codes = [p.wait() for p in procs]"]
)
def test_processes_that_were_appended_are_watched_all_at_once(waits):
    text = f"""\
import subprocess

def main(n):
    procs = []
    for r in range(n):
        procs.append(subprocess.Popen(["train", str(r)]))
    {waits}  # <-- here
    return 0
"""
    made = patched("LCH001", text, "rank_exited", "stuck")
    assert "    while any(p.poll() is None for p in procs):\n" in made
    assert ("codes = [p.wait() for p in procs]" in made) is ("codes" in waits)


def test_a_session_gets_a_time_out_and_a_running_mean_stays_on_the_device():
    session = "import requests\n\nS = requests.Session()\n\ndef get(url):\n    return S.get(url)"
    made = patched("IO002", f"{session}  # <-- here\n", "blocked_io", "stuck")
    assert "S.get(url, timeout=60)" in made
    text = """\
def train(model, data, mean):
    for x in data:
        loss = model(x)
        loss.backward()
        mean = 0.9 * mean + 0.1 * loss.item()  # <-- here
"""
    assert "0.1 * loss.detach()" in patched("SYN001", text, "host_sync")


def test_who_must_tell_the_sampler_the_epoch_is_told_so():
    text = """\
from torch.utils.data import DataLoader

def build(ds):
    return DataLoader(ds, batch_size=8, shuffle=True)  # <-- here
"""
    example = Example(before=text, category="sampler_misconfiguration")
    result = find_fixer("SMP002").fix(context_of(find_fixer("SMP002"), example))
    assert "set_epoch(epoch)" in result.behaviour


def test_a_helper_stands_before_a_line_between_the_imports_that_calls_it():
    text = """\
import os
os.environ.setdefault("OMP_NUM_THREADS", "64")  # <-- here
import torch
"""
    made = patched("CPU001", text, "cpu_oversubscription")
    assert made.index("def cores_per_rank") < made.index("os.environ.setdefault(")
    assert made.index("import os") < made.index("def cores_per_rank")


def test_locks_of_one_with_are_turned_where_other_code_nests_them_the_other_way():
    text = """\
def one():
    with a_lock, b_lock:  # <-- here
        work()

def two():
    with b_lock:
        with a_lock:
            work()
"""
    made = patched("THR001", text, "thread_lock_deadlock", "stuck")
    assert "    with b_lock, a_lock:\n        work()\n" in made


def test_the_end_of_the_data_is_no_step_that_failed():
    text = """\
def fit(model, opt, data):
    while True:
        x = next(data)
        loss = model(x)
        loss.backward()
        opt.step()

def main(model, opt, data):
    try:
        fit(model, opt, data)
    except Exception:
        wait()  # <-- here
"""
    made = patched("EXC002", HEAD + text, "exception_swallowed", "stuck")
    assert "        x = next(data)\n        worked = torch.ones(1)\n        try:\n" in made


def test_of_several_contexts_only_the_debug_switch_goes():
    text = """\
import torch

def main():
    with torch.autograd.detect_anomaly(), torch.autocast("cuda"):  # <-- here
        run()
"""
    made = patched("DBG001", text, "debug_setting_left_on")
    assert '    with torch.autocast("cuda"):\n        run()\n' in made


def test_a_consumer_that_goes_through_iter_of_get_is_kept_alive():
    text = """\
def loop(self):
    for item in iter(self.q.get, None):
        try:
            self.store(item)
        except OSError:
            break  # <-- here
"""
    assert '.exception("one item is lost")' in patched("THR003", text, "thread_lock_deadlock")
