"""Functions of the host threads: identity, stacks, lines, folding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_timeline import betas, make_timeline

from eroica.config import Parameters
from eroica.summarize import summarize
from eroica.summarize.classify import classify
from eroica.summarize.critical_path import order_events
from eroica.summarize.names import PythonName, parse_python_name, strip_addresses
from eroica.summarize.python_stacks import FunctionNames, build_call_tree

ALL = Parameters(rest_beta=0.0)


def by_name(patterns):
    return {function.name: function for function in patterns.functions}


def test_a_call_is_taken_apart_and_addresses_go():
    assert parse_python_name("toy.py(92): main") == PythonName("main", "toy.py", 92)
    assert parse_python_name("a(b)/c.py(7): <lambda>") == PythonName("<lambda>", "a(b)/c.py", 7)
    built_in = parse_python_name("<built-in method append of list object at 0x7f10aa>")
    assert built_in == PythonName("<built-in method append of list object>", None, None)
    assert built_in.is_builtin
    assert not parse_python_name("Python GC").is_builtin
    assert strip_addresses("<eval_with_key>.17") == strip_addresses("<eval_with_key>.3")
    inductor = [
        parse_python_name(f"/tmp/torchinductor_{user}/ab/cab.py(5): call") for user in ("ann", "bo")
    ]
    assert inductor[0] == inductor[1]


def test_machinery_is_torch_and_the_standard_library():
    def is_machinery(name):
        return parse_python_name(name).is_machinery

    assert is_machinery("torch/nn/modules/module.py(1): _call_impl")
    assert is_machinery("json/decoder.py(1): decode")
    assert is_machinery("/opt/venv/lib/python3.11/site-packages/torch/_tensor.py(1): backward")
    assert is_machinery("/usr/lib/python3.11/socket.py(1): recv_into")
    assert is_machinery("<frozen importlib._bootstrap>(405): parent")
    assert is_machinery("<built-in function len>")
    assert not is_machinery("train.py(3): main")
    assert not is_machinery("/srv/job/data/reader.py(3): __next__")
    assert not is_machinery("transformers/models/llama/modeling_llama.py(3): forward")


def test_identity_is_the_whole_stack_and_no_line():
    def job(line, address):
        return make_timeline(
            [
                ("python_function", f"train.py({line}): main", "main", 0, 100),
                ("python_function", "a.py(5): load", "main", 10, 30),
                (
                    "python_function",
                    f"<built-in method read of X object at {address}>",
                    "main",
                    15,
                    20,
                ),
                ("python_function", "b.py(5): save", "main", 50, 40),
                (
                    "python_function",
                    f"<built-in method read of X object at {address}>",
                    "main",
                    55,
                    30,
                ),
            ]
        )

    one, other = summarize(job(90, "0x1")), summarize(job(92, "0x2"))
    assert [f.id for f in one.functions] == [f.id for f in other.functions]
    reads = [f for f in one.functions if f.name.startswith("<built-in method read")]
    assert [[place.name for place in f.stack] for f in reads] == [
        ["save", "main"],
        ["load", "main"],
    ]
    assert reads[0].id != reads[1].id
    main = by_name(one)["main"]
    assert (main.file, main.line, main.kind) == ("train.py", 90, "python")


def test_a_fresh_call_tells_the_def_line():
    timeline = make_timeline(
        [
            ("python_function", "train.py(92): step", "main", 0, 10),  # open when it began: line 92
            ("python_function", "train.py(80): step", "main", 20, 10),
        ]
    )
    patterns = summarize(timeline)
    assert [(f.name, f.line) for f in patterns.functions] == [("step", 80)]
    assert patterns.count_F.tolist() == [2]
    assert patterns.total_ns_F.tolist() == [20]


def test_module_frames_are_looked_through_and_kept_as_detail():
    def job(number):
        return make_timeline(
            [
                ("python_function", "train.py(1): main", "main", 0, 100),
                ("python_function", f"nn.Module: Linear_{number}", "main", 10, 80),
                ("python_function", "torch/nn/modules/linear.py(9): forward", "main", 20, 60),
            ]
        )

    functions = by_name(summarize(job(0)))
    assert set(functions) == {"main", "forward"}
    assert [place.name for place in functions["forward"].stack] == ["main"]
    assert functions["forward"].module == "nn.Module: Linear_0"
    assert by_name(summarize(job(5)))["forward"].id == functions["forward"].id
    assert betas(summarize(job(0))) == {"main": 0.4, "forward": 0.6}


def test_a_module_frame_without_a_caller_is_nobody():
    timeline = make_timeline(
        [
            ("python_function", "nn.Module: Linear_0", "main", 0, 10),
            ("python_function", "a.py(1): f", "main", 4, 2),
        ]
    )
    patterns = summarize(timeline)
    assert betas(patterns) == {"f": 0.2}
    assert patterns.breakdown["idle"] == 0.8


def test_operators_are_told_apart_by_the_place_that_led_to_them():
    events = [
        ("python_function", "train.py(1): main", "main", 0, 100),
        ("python_function", "model.py(3): forward", "main", 10, 20),
        ("python_function", "torch/nn/functional.py(1): linear", "main", 11, 18),
        ("cpu_op", "aten::mm", "main", 12, 10),
        ("python_function", "torch/nn/functional.py(1): bilinear", "main", 30, 3),
        ("python_function", "metric.py(3): score", "main", 40, 30),
        ("cpu_op", "aten::mm", "main", 45, 20),
    ]
    products = [f for f in summarize(make_timeline(events)).functions if f.name == "aten::mm"]
    assert [[place.name for place in f.stack] for f in products] == [
        ["score", "main"],
        ["linear", "forward", "main"],
    ]
    assert all(f.kind == "op" and f.file is None for f in products)


def test_an_operator_shows_the_stack_that_led_to_it_longest():
    events = [("python_function", "model.py(3): forward", "main", 0, 100)]
    for i, (name, duration) in enumerate([("relu", 5), ("linear", 20), ("relu", 6)]):
        events.append(
            ("python_function", f"torch/nn/functional.py({i}): {name}", "main", 25 * i, 24)
        )
        events.append(("cpu_op", "aten::empty", "main", 25 * i + 1, duration))
    empty = by_name(summarize(make_timeline(events)))["aten::empty"]
    assert [place.name for place in empty.stack] == ["linear", "forward"]


def test_garbage_collection_is_one_function_wherever_it_strikes():
    timeline = make_timeline(
        [
            ("python_function", "a.py(1): f", "main", 0, 40),
            ("python_function", "Python GC", "main", 10, 20),
            ("python_function", "a.py(2): g", "main", 40, 60),
            ("python_function", "Python GC", "main", 50, 30),
        ]
    )
    patterns = summarize(timeline)
    assert betas(patterns) == {"f": 0.2, "g": 0.3, "Python GC": 0.5}
    gc = by_name(patterns)["Python GC"]
    assert gc.kind == "python" and gc.stack[0].name == "g"


def test_a_small_builtin_counts_with_the_frame_that_called_it():
    events = [("python_function", "a.py(1): f", "main", 0, 100_000)]
    events += [
        ("python_function", f"<built-in function b{i}>", "main", 100 * i, 50) for i in range(900)
    ]
    assert betas(summarize(make_timeline(events))) == {"f": 1.0}
    assert len(summarize(make_timeline(events), parameters=ALL).functions) == 901


def test_what_is_small_folds_into_rest_and_shares_still_add_up():
    events = [("python_function", f"a.py({i}): f{i}", "main", 100 * i, 50) for i in range(1500)]
    events.append(("python_function", "b.py(1): big", "main", 150_000, 75_000))
    patterns = summarize(make_timeline(events, window=(0, 225_000)))
    assert betas(patterns) == {"big": round(75 / 225, 6), "rest": round(75 / 225, 6)}
    assert patterns.functions[-1].kind == "rest"
    assert patterns.count_F.tolist() == [1, 1500]


def test_threads_chained_into_tid_0_are_taken_apart():
    chain = [
        "threading.py(1): _bootstrap",
        "threading.py(9): _bootstrap_inner",
        "logger.py(5): run",
        "train.py(100): <module>",
        "train.py(90): main",
        "torch/distributed/distributed_c10d.py(4800): barrier",
        "threading.py(1): _bootstrap",
        "watch.py(7): poll",
    ]
    events = [("python_function", name, "lost", 0, 100, i + 1) for i, name in enumerate(chain)]
    events.append(("python_function", "agent.py(1): tick", "other", 10, 5, 50))
    patterns = summarize(make_timeline(events))
    assert betas(patterns) == {"barrier": 1.0}
    assert [place.name for place in patterns.functions[0].stack] == ["main", "<module>"]


def test_stacks_deeper_and_calls_more_than_any_table_was_made_for():
    depth = 1000
    events = [
        ("python_function", f"a.py({i}): f{i}", "main", i, 2 * (depth - i)) for i in range(depth)
    ]
    late = 2 * depth
    events += [
        ("python_function", f"b.py({i}): g{i}", "main", late + 2 * i, 1) for i in range(3000)
    ]
    patterns = summarize(make_timeline(events), parameters=ALL)
    found = by_name(patterns)
    assert len(found) == depth + 3000
    names = [f"f{i}" for i in range(depth)]
    for i in (0, 1, 127, 128, 255, 256, depth - 1):
        assert [place.name for place in found[f"f{i}"].stack] == names[:i][::-1]
    assert not any(found[f"g{i}"].stack for i in range(3000))
    assert betas(patterns)["f0"] == round(2 / (late + 5999), 6)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 400))
def test_every_call_has_the_stack_that_led_to_it(random, size):
    """Against a stack kept in a plain list, for calls nested at random on two threads."""
    events, expected = [], []
    for track in ("main", "autograd"):
        stack, time = [], 0
        for step in range(2 * size):
            if stack and (step >= size or random.random() < 0.45):
                index, _ = stack.pop()
                events[index] = (*events[index][:4], time - events[index][3])
            else:
                file, name = f"m{random.randrange(4)}.py", f"f{random.randrange(6)}"
                stack.append((len(events), (file, name)))
                expected.append([frame for _, frame in reversed(stack)])
                events.append(("python_function", f"{file}(1): {name}", track, time, 0))
            time += 1
        while stack:
            index, _ = stack.pop()
            events[index] = (*events[index][:4], time - events[index][3])
            time += 1
    # The engine's thread counts because an operator of the backward pass ran there.
    events.append(("cpu_op", "autograd::engine::evaluate_function: X", "autograd", 10**6, 1))
    events.append(("user_annotation", "ProfilerStep#1", "main", 0, 1))
    timeline = make_timeline(events)
    lanes = classify(timeline)
    host = np.flatnonzero(lanes.lane_E >= 0).astype(np.int32)
    columns = timeline.start_ns_E, timeline.duration_ns_E, timeline.python_id_E
    tree, node_E = build_call_tree(timeline, lanes, order_events(*columns, host))
    names = FunctionNames(tree, timeline.names)
    for event, frames in enumerate(expected):
        found = [(place.file, place.name) for place in names.stack(int(node_E[event]))]
        assert found == frames
    assert len(set(node_E[: len(expected)].tolist())) == len({tuple(one) for one in expected})


@pytest.mark.parametrize(
    ("file", "is_machinery"),
    [
        ("code/train.py", False),
        ("test/train.py", False),
        ("types/batch.py", False),
        ("train.py", False),
        ("queue.py", True),
        ("asyncio/tasks.py", True),
        ("torch/nn/functional.py", True),
        ("/usr/lib/python3.11/queue.py", True),
        ("/x/lib/python3.11/site-packages/mine/model.py", False),
    ],
)
def test_a_folder_of_the_users_is_no_module_of_python_of_that_name(file, is_machinery):
    assert parse_python_name(f"{file}(3): f").is_machinery is is_machinery
