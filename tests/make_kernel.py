"""A made-up kernel: /proc and /sys of a host in a folder, whose counters tests move on."""

from eroica.collect.counters import Kernel

VMSTAT = "nr_free_pages 9\npswpin {swapped}\npswpout 0\npgmajfault {faults}\noom_kill {kills}\n"


class FakeKernel:
    """``set`` writes files anew; what a source holds open is rewritten in place."""

    def __init__(self, folder):
        self.kernel = Kernel(proc=folder / "proc", sys=folder / "sys")
        self.proc, self.sys = self.kernel.proc, self.kernel.sys
        self.network(rx=0, tx=0)
        self.pressure(cpu=0, memory=0, io=0)
        self.memory(swapped=0, faults=0, kills=0)
        self.processors(user=0, steal=0)

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+" if path.exists() else "w") as stream:
            stream.truncate()
            stream.write(text)

    def network(self, *, rx, tx, errors=0, drops=0, name="eth0"):
        (self.sys / "class/net" / name / "device").mkdir(parents=True, exist_ok=True)
        (self.sys / "class/net/lo").mkdir(parents=True, exist_ok=True)
        (self.sys / "class/net/veth7").mkdir(parents=True, exist_ok=True)
        self.write(
            self.proc / "net/dev",
            "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame compressed\n"
            "    lo:   7  1  0 0 0 0 0 0    7  1 0 0 0 0 0 0\n"
            f"  {name}: {rx}  1  {errors} {drops} 0 0 0 0  {tx} 1 0 0 0 0 0 0\n"
            " veth7: 5  1  9 9 0 0 0 0  5 1 9 9 0 0 0 0\n",
        )

    def pressure(self, *, cpu, memory, io):
        for name, value in (("cpu", cpu), ("memory", memory), ("io", io)):
            part = "avg10=0.00 avg60=0.00 avg300=0.00"
            some, full = (value, 0) if name == "cpu" else (9 * value, value)
            text = f"some {part} total={some}\nfull {part} total={full}\n"
            self.write(self.proc / "pressure" / name, text)

    def memory(self, **numbers):
        self.write(self.proc / "vmstat", VMSTAT.format(**numbers))

    def processors(self, *, user, steal):
        self.write(self.proc / "stat", f"cpu  {user} 0 0 900 5 0 0 {steal} 0 0\ncpu0 1 2\n")

    def thread(self, pid, tid, *, cpu_ns, wait_ns):
        self.write(self.proc / f"{pid}/task/{tid}/schedstat", f"{cpu_ns} {wait_ns} 12\n")

    def process(self, pid, *, name="python", parent=1, cpu_ticks=0, faults=0, start=5):
        fields = ["S", parent, 1, 1, 0, -1, 0, 0, 0, faults, 0, cpu_ticks, 0, 0, 0, 20, 0, 1, 0]
        text = " ".join(str(field) for field in [*fields, start, 0, 0])
        self.write(self.proc / f"{pid}/stat", f"{pid} ({name}) {text}\n")

    def cgroup(self, pid, text):
        self.write(self.proc / f"{pid}/cgroup", text)

    def infiniband(self, *, tx_words=0, errors=0, rate="400 Gb/sec (4X NDR)", device="mlx5_0"):
        port = self.sys / "class/infiniband" / device / "ports/1"
        self.write(port / "counters/port_rcv_data", "0\n")
        self.write(port / "counters/port_xmit_data", f"{tx_words}\n")
        self.write(port / "counters/symbol_error", f"{errors}\n")
        self.write(port / "rate", rate + "\n")


class FakeGpus:
    """Two GPUs; numbers are set by tests, what is missing raises as NVML does."""

    def __init__(self, count=2):
        self.values = [{} for _ in range(count)]
        self.field_values = [{} for _ in range(count)]
        self.running = [[] for _ in range(count)]
        self.is_closed = False
        self.num_reads = 0

    def count(self):
        return len(self.values)

    def name(self, index):
        return f"GPU {index}"

    def uuid(self, index):
        return f"GPU-{index}{index}aa"

    def pids(self, index):
        return self.running[index]

    def read(self, index, what):
        self.num_reads += 1
        if what not in self.values[index]:
            raise RuntimeError("Not Supported")
        return self.values[index][what]

    def fields(self, index, wanted):
        return [self.field_values[index].get(key, float("nan")) for key in wanted]

    def close(self):
        self.is_closed = True
