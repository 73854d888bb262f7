"""Arrivals: keys equal over ranks, culprits, and what traces without metadata tell."""

from make_timeline import make_timeline

from eroica.summarize import summarize
from eroica.summarize.arrivals import collective_op


def test_keys_count_the_collectives_of_a_group_and_op():
    timeline = make_timeline(
        [
            ("user_annotation", "gloo:all_reduce", "gloo", 0, 5),
            ("user_annotation", "gloo:barrier", "gloo2", 10, 5),
            ("user_annotation", "gloo:all_reduce", "gloo2", 20, 5),
        ]
    )
    arrivals = summarize(timeline).arrivals
    assert arrivals.key_C == ("host|all_reduce|0", "host|barrier|0", "host|all_reduce|1")
    assert arrivals.start_ns_C.tolist() == [0, 10, 20]
    assert arrivals.end_ns_C.tolist() == [5, 15, 25]
    assert arrivals.num_bytes_C.tolist() == [-1, -1, -1]


def test_group_sequence_and_size_come_from_the_trace_where_it_has_them():
    events = [("kernel", "ncclDevKernel_SendRecv", "stream9", 10 * i, 5) for i in range(3)]
    timeline = make_timeline(
        events,
        collectives=[(0, "all_to_all", "ep_1", 41, 64), (2, "all_to_all", "ep_1", 43, 128)],
    )
    patterns = summarize(timeline)
    assert patterns.arrivals.key_C == (
        "ep_1|all_to_all|41",
        "stream0|send_recv|0",
        "ep_1|all_to_all|43",
    )
    assert patterns.arrivals.num_bytes_C.tolist() == [64, -1, 128]
    assert {(f.name, f.group) for f in patterns.functions} == {
        ("all_to_all", "ep_1"),
        ("send_recv", "stream0"),
    }


def test_streams_stand_for_groups_by_their_number_not_their_order_of_use():
    def keys(first, second):
        timeline = make_timeline(
            [
                ("kernel", "ncclKernel_AllReduce_RING", first, 0, 5),
                ("kernel", "ncclKernel_AllReduce_RING", second, 10, 5),
            ]
        )
        return summarize(timeline).arrivals.key_C

    assert keys("stream9", "stream84") == ("stream0|all_reduce|0", "stream1|all_reduce|0")
    assert keys("stream84", "stream9") == ("stream1|all_reduce|0", "stream0|all_reduce|0")


def test_the_culprit_is_what_held_the_path_longest_since_the_collective_before():
    timeline = make_timeline(
        [
            ("python_function", "train.py(1): main", "main", 0, 200),
            ("python_function", "data.py(5): decode", "main", 5, 60),
            ("user_annotation", "gloo:all_reduce", "gloo", 80, 10),
            ("cpu_op", "aten::mm", "main", 95, 20),
            ("user_annotation", "gloo:all_reduce", "gloo", 116, 30),
            ("user_annotation", "gloo:all_reduce", "gloo", 146, 10),
        ]
    )
    patterns = summarize(timeline)
    names = {function.id: function.name for function in patterns.functions}
    assert [names.get(id) for id in patterns.arrivals.culprit_C] == ["decode", "aten::mm", None]


def test_nccl_annotations_on_the_host_are_launches_and_no_collectives():
    timeline = make_timeline(
        [
            ("user_annotation", "nccl:all_reduce", "main", 0, 5),
            ("gpu_user_annotation", "nccl:all_reduce", "stream9", 3, 9),
            ("kernel", "ncclDevKernel_AllReduce", "stream9", 4, 8),
        ]
    )
    assert len(summarize(timeline).arrivals.key_C) == 1


def test_waiting_for_an_async_collective_is_communication_on_cpu_too():
    timeline = make_timeline([("cpu_op", "_c10d_functional::wait_tensor", "main", 0, 10)])
    patterns = summarize(timeline)
    assert patterns.functions[0].kind == "collective"
    assert patterns.breakdown["exposed_communication"] == 1.0
    assert patterns.arrivals.key_C == ()


def test_kernel_names_of_all_ages_tell_their_op():
    ops = {
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, ncclWork*)": "all_reduce",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(Storage<4096ul>)": "reduce_scatter",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)": "send_recv",
        "ncclDevKernel_Broadcast_RING_LL": "broadcast",
        "ncclDevKernel_Reduce_Sum_f32": "reduce",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": "collective",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>": "all_reduce",
        "gloo:barrier": "barrier",
    }
    assert {name: collective_op(name) for name in ops} == ops
