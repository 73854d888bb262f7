"""Every record that crosses a stage or touches the disk.

Bulk data (events, patterns of many ranks) is columnar and lives in ``columns.py``. Fields are
added with defaults, never renamed or reordered: saved incidents outlive the version that made
them. One file on purpose, however long: it is the contract between the rooms, read top to bottom
in the order the data goes. Times are int nanoseconds, sizes bytes, shares fractions 0..1.
"""

from typing import Any, Literal

import msgspec


class Warning(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was dropped, ignored or missing. ``file`` may be None for a whole run."""

    file: str | None
    what: str


# --- places and functions -------------------------------------------------------------------

FunctionKind = Literal["python", "kernel", "op", "collective", "memory", "idle", "rest"]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A place in source code. ``line`` is the current line for a live frame, else the def line."""

    name: str
    file: str | None = None
    line: int | None = None


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function as the paper means it: a Python function, a kernel, an operator, a collective.

    The identity of a Python function is its whole call stack (paper section 3), normalized:
    addresses stripped, file and function, no line. ``id`` is a hash of that identity, the same
    on every rank and host.
    """

    id: str
    kind: FunctionKind
    name: str
    file: str | None = None
    line: int | None = None
    group: str | None = None
    """Process group, for collectives."""
    stack: tuple[Place, ...] = ()
    """Callers, innermost first, without the function itself."""
    module: str = ""
    """Innermost ``nn.Module`` around it, e.g. ``nn.Module: Linear_0``; a detail, no identity."""


# --- evidence of one rank -------------------------------------------------------------------


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True):
    """One thread's Python (and, when native, C) frames, innermost first."""

    frames: tuple[Place, ...]
    name: str = ""
    os_thread_id: int | None = None
    is_main: bool = False
    is_active: bool | None = None
    """On CPU or about to be, as py-spy sees it; None where the source does not say."""
    holds_gil: bool = False


class ProcessStacks(msgspec.Struct, frozen=True, kw_only=True):
    """The stacks of all threads of one process at one moment."""

    threads: tuple[ThreadStack, ...]
    pid: int | None = None
    parent_pid: int | None = None
    command: str = ""
    source: str = ""
    """Who took them: ``py-spy``, ``faulthandler``, ``current_frames``, ..."""
    taken_ns: int | None = None
    """Unix time, where known."""
    rank: int | None = None
    """Where the source names the rank itself."""
    warnings: tuple[Warning, ...] = ()


class CollectiveEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One Flight Recorder entry: a collective or point-to-point call issued by a rank."""

    record_id: int
    op: str
    """As torch names it, without the backend: ``all_reduce``, ``barrier``, ``send 0->1``."""
    backend: str = ""
    group: str = ""
    group_description: str = ""
    sequence: int | None = None
    """``collective_seq_id``: counts the collectives of the group."""
    p2p_sequence: int | None = None
    op_id: int | None = None
    is_p2p: bool = False
    source_rank: int | None = None
    """Group rank that sends, for point-to-point."""
    destination_rank: int | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    created_ns: int | None = None
    started_ns: int | None = None
    completed_ns: int | None = None
    duration_ns: int | None = None
    state: str = ""
    is_retired: bool = False
    """The rank is done with it. On gloo the only sign of completion."""
    timeout_ms: int | None = None
    frames: tuple[Place, ...] = ()
    """Call stack, innermost first; JSON dumps carry none."""
    thread_name: str = ""
    thread_id: str = ""
    group_id: str = ""
    """The rank's own number of the group: what ``FlightRecord.status`` is keyed by."""


class FlightRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's Flight Recorder dump, any version."""

    rank: int | None
    version: str
    groups: dict[str, tuple[int, ...]]
    """Group name to global ranks; empty where the dump does not say."""
    group_descriptions: dict[str, str] = {}
    status: dict[str, dict[str, int]] = {}
    """Local group id to last_enqueued / last_started / last_completed sequence."""
    entries: tuple[CollectiveEntry, ...] = ()
    only_active: bool = False
    """The dump holds unfinished entries only, so there is no history in it."""
    warnings: tuple[Warning, ...] = ()


class ThreadState(msgspec.Struct, frozen=True, kw_only=True):
    """One thread as the kernel shows it."""

    os_thread_id: int
    name: str = ""
    state: str = ""
    """``R``, ``S``, ``D``, ``T`` ... of /proc."""
    wait_channel: str = ""
    syscall: str = ""
    cpu_ns: int | None = None
    wait_ns: int | None = None


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """One process as the kernel shows it."""

    pid: int
    parent_pid: int | None = None
    command: str = ""
    state: str = ""
    cpu_ns: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    resident_bytes: int | None = None
    threads: tuple[ThreadState, ...] = ()


class RankExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank ended."""

    exit_code: int | None = None
    signal: str | None = None
    time_ns: int | None = None
    error_type: str | None = None
    message: str | None = None
    frames: tuple[Place, ...] = ()
    """Traceback, innermost first."""
    thread: str = ""
    """Name of the thread, where it was not the main one that ended."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A fact about how the job is set up, told by the hook: ``anomaly_mode``, ``num_threads``,
    ``dataloader.num_workers``, ``compile.recompiles``, ``env.TORCH_DISTRIBUTED_DEBUG`` ...

    ``places`` is where it was set, innermost frame of the user's project first.
    """

    key: str
    value: Any
    places: tuple[Place, ...] = ()


class LogEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something a log says that matters, e.g. a watchdog line, a traceback, an Xid, an OOM kill."""

    kind: str
    text: str
    file: str | None = None
    line: int | None = None
    rank: int | None = None
    host: str | None = None
    time_ns: int | None = None
    fields: dict[str, Any] = {}
    frames: tuple[Place, ...] = ()


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Per-step times of one rank, oldest first, as the hook's ring holds them."""

    start_ns: tuple[int, ...]
    """Unix time at which each step began."""
    duration_ns: tuple[int, ...]
    data_ns: tuple[int, ...] = ()
    """Time inside DataLoader ``__next__``; empty where no loader was seen."""
    optimizer_ns: tuple[int, ...] = ()
    first_step: int = 0


class StallSample(msgspec.Struct, frozen=True, kw_only=True):
    """Stacks taken when a step ran far beyond the median (design: 3 x)."""

    step: int
    elapsed_ns: int
    stacks: ProcessStacks


class SampledStack(msgspec.Struct, frozen=True, kw_only=True):
    """One distinct stack of a sampling profile and how often it was seen."""

    frames: tuple[Place, ...]
    """Innermost first."""
    count: int
    active_count: int = 0
    """Samples in which the thread was on CPU."""
    thread: str = ""
    process: str = ""
    """Empty for the rank itself, else what kind of child: ``loader worker`` ..."""


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """A sampling profile of one rank and its children over a window."""

    start_ns: int
    end_ns: int
    num_samples: int
    stacks: tuple[SampledStack, ...]


class CounterUse(msgspec.Struct, frozen=True, kw_only=True):
    """One hardware counter over the time looked at; names and units as in read/hardware.py."""

    mean: float
    low: float
    high: float
    increase: float | None = None
    """Last minus first, of counters that only count up (errors, page-ins, OOM kills)."""
    seconds: float = 0.0


class Neighbor(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a host that is none of the job's, and the cores it kept busy."""

    pid: int
    name: str
    cores: float


class HostEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the counters of one host said while the job ran."""

    host: str
    num_cpus: int = 0
    counters: dict[str, CounterUse] = {}
    neighbors: tuple[Neighbor, ...] = ()
    """The busiest first."""
    missing: tuple[str, ...] = ()


class RankEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything gathered of one rank. Each part is optional: any one kind must do alone."""

    rank: int
    host: str = ""
    pid: int | None = None
    local_rank: int | None = None
    stacks: tuple[ProcessStacks, ...] = ()
    """Samples of the rank's own process, oldest first."""
    children: tuple[ProcessStacks, ...] = ()
    """Loader workers and other forks, newest sample each."""
    process: ProcessState | None = None
    child_processes: tuple[ProcessState, ...] = ()
    flight: FlightRecord | None = None
    exit: RankExit | None = None
    settings: tuple[Setting, ...] = ()
    steps: StepTimes | None = None
    stalls: tuple[StallSample, ...] = ()
    samples: Samples | None = None
    last_event_ns: int | None = None
    log_tail: str = ""
    missing: tuple[str, ...] = ()
    """What could not be collected and why, a sentence each."""
    counters: dict[str, CounterUse] = {}
    """The rank's threads, cgroup and GPU: ``training_thread.wait``, ``gpu0.sm_clock_hz`` ..."""
    thread_errors: tuple[RankExit, ...] = ()
    """Exceptions that ended threads of the rank other than the main one, oldest first."""


class JobEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks' evidence, as ``collect`` and ``read`` hand it to ``localize``."""

    ranks: tuple[RankEvidence, ...]
    world_size: int
    backend: str = ""
    command: tuple[str, ...] = ()
    source_root: str | None = None
    """The user's project: frames below it are the user's code."""
    symptom_hint: str | None = None
    """What the watcher saw: ``stuck``, ``slow``, ``failed``, ``healthy``; None for files."""
    onset_ns: int | None = None
    detected_ns: int | None = None
    """Unix time at which the watcher knew that something is wrong."""
    window_ns: tuple[int, int] | None = None
    """Unix times of the profiler's last window, first request to last export."""
    taken_ns: int | None = None
    log_events: tuple[LogEvent, ...] = ()
    warnings: tuple[Warning, ...] = ()
    step_ms_before: float | None = None
    step_ms_now: float | None = None
    hosts: tuple[HostEvidence, ...] = ()


# --- the answer: incident.json and ``diagnose --json`` ---------------------------------------

Symptom = Literal["slow", "stuck", "failed", "healthy", "unknown"]
Action = Literal["patch", "drain", "configure", "investigate"]

CATEGORIES: dict[str, tuple[str, ...]] = {
    "collective": (
        "rank_conditional_collective",
        "collective_count_mismatch",
        "collective_order_mismatch",
        "collective_dtype_mismatch",
        "collective_shape_mismatch",
        "checkpoint_collective_on_one_rank",
        "uneven_inputs",
        "divergent_control_flow",
    ),
    "lock": ("fork_lock_deadlock", "thread_lock_deadlock"),
    "process": ("exception_swallowed", "rank_exited"),
    "wait": ("blocked_io", "polling_wait"),
    "communication": (
        "excessive_small_collectives",
        "excessive_object_collectives",
        "excessive_barriers",
        "redundant_gradient_sync",
    ),
    "host": (
        "logging_overhead",
        "straggler_rank_logging",
        "growing_state",
        "gc_pause",
        "checkpoint_overhead",
        "serialized_on_rank0",
        "host_sync",
        "python_overhead",
    ),
    "data": ("dataloader_bottleneck", "straggler_data_loading", "sampler_misconfiguration"),
    "compute": (
        "straggler_compute",
        "cpu_oversubscription",
        "load_imbalance",
        "recompilation",
        "debug_setting_left_on",
    ),
    "environment": (
        "straggler_network",
        "nic_degraded",
        "nvlink_degraded",
        "pcie_degraded",
        "gpu_throttled",
        "gpu_fault",
        "memory_pressure",
    ),
}
"""Family to categories: the closed set a cause may be of."""

FAMILY = {category: family for family, names in CATEGORIES.items() for category in names}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine measured; numbers and facts only, cited by causes and by prose."""

    id: str
    kind: str
    """``pattern``, ``collective_arrival``, ``collective_divergence``, ``stack``, ``exit`` ..."""
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    function: Function | None = None
    beta: float | None = None
    mu: float | None = None
    sigma: float | None = None
    expected_distance: float | None = None
    differential_distance: float | None = None
    threshold: float | None = None
    peers: dict[str, float] = {}
    """Median beta, mu, sigma of the peers."""
    text: str = ""
    """One sentence for people."""
    details: dict[str, Any] = {}


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One explanation of the symptom. The first of an incident is the answer."""

    id: str
    category: str
    ranks: tuple[int, ...] | Literal["all"]
    functions: tuple[Place, ...]
    """[0] innermost frame inside the user's project; [1] its caller or the line that set it up."""
    share: float | None
    """Step time that would go if this cause went (counterfactual), 0..1; None when stuck."""
    confidence: float
    summary: str
    action: Action
    hosts: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    victims: tuple[int, ...] = ()
    why: tuple[str, ...] = ()
    """Sentences of reasoning, each from a finding: the rule-written explanation."""
    against: tuple[str, ...] = ()
    """What speaks against it."""
    advice: str = ""
    """What to do, one or two sentences."""


class StepMs(msgspec.Struct, frozen=True, kw_only=True):
    before: float | None = None
    now: float | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    world_size: int
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...] = ()
    hosts: dict[str, tuple[int, ...]] = {}
    backend: str = ""
    step_ms: StepMs = StepMs()
    command: tuple[str, ...] = ()
    source_root: str | None = None


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table a person sees of a stuck job: ranks that wait alike."""

    ranks: tuple[int, ...]
    last_collective: str = ""
    place: str = ""
    since_ns: int | None = None
    note: str = ""


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's window by what held it: fractions of the window that add up to 1."""

    rank: int
    compute: float = 0.0
    exposed_communication: float = 0.0
    memory: float = 0.0
    data: float = 0.0
    python: float = 0.0
    idle: float = 0.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What localization says of a job, before it becomes an incident."""

    symptom: Symptom
    causes: tuple[Cause, ...] = ()
    """Ranked: the first is the answer."""
    findings: tuple[Finding, ...] = ()
    headline: str = ""
    ranks_table: tuple[RankRow, ...] = ()
    breakdown: tuple[Breakdown, ...] = ()
    not_seen: tuple[str, ...] = ()
    """What would make the answer surer and how to collect it, a sentence each."""
    deadline_ns: int | None = None
    warnings: tuple[Warning, ...] = ()


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """``incident.json`` and the output of ``--json``, byte for byte."""

    schema: int = 1
    id: str
    symptom: Symptom
    onset: str | None
    """ISO 8601, UTC."""
    job: Job
    causes: tuple[Cause, ...]
    findings: tuple[Finding, ...]
    warnings: tuple[Warning, ...]
    headline: str = ""
    created: str = ""
    """ISO 8601, UTC."""
    eroica: str = ""
    """Version that made it."""
    source: str = ""
    """What was diagnosed: a path, ``live``, ``pid 12``."""
    ranks_table: tuple[RankRow, ...] = ()
    breakdown: tuple[Breakdown, ...] = ()
    not_seen: tuple[str, ...] = ()
    deadline_ns: int | None = None
    """Time left until the collective time-out ends a stuck job, at diagnosis."""


# --- explanation, patches, decisions --------------------------------------------------------


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    citations: tuple[str, ...] = ()
    """Finding ids or ``file:line``."""
    is_resolved: bool = True


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of one cause, by rule or by a model."""

    cause: str
    verdict: Literal["established", "supported", "hypothesis", "insufficient evidence"]
    summary: str
    claims: tuple[Claim, ...] = ()
    next_steps: tuple[str, ...] = ()
    disproved_by: tuple[str, ...] = ()
    source: str = "rules"
    """``rules`` or the model's name."""
    notes: tuple[str, ...] = ()


Label = Literal["safe", "review", "display-only"]


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    passed: bool
    reason: str = ""


class FileEdit(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a patch: the whole text before and after, and the hash it holds for."""

    path: str
    """Relative to the source root, with forward slashes."""
    before: str
    after: str
    sha256: str
    """Of the file's bytes before."""


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    command: tuple[str, ...]
    verdict: Literal["cured", "improved", "no change", "worse", "failed", "not run"]
    summary: str
    seconds_before: float | None = None
    seconds_after: float | None = None
    step_ms_before: float | None = None
    step_ms_after: float | None = None
    details: dict[str, Any] = {}


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    cause: str
    source: str
    """``fixer CODE`` or ``model``."""
    label: Label
    title: str
    edits: tuple[FileEdit, ...]
    diff: str
    why: str = ""
    behaviour: str = ""
    """What changes for the program besides the cure."""
    gates: tuple[Gate, ...] = ()
    rehearsal: Rehearsal | None = None
    applied: str | None = None
    """ISO time, or None."""
    applied_hunks: tuple[int, ...] = ()
    """Of a patch accepted in part or edited: the numbers of its hunks that were applied."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``decisions.jsonl``."""

    time: str
    patch: str
    action: Literal["accept", "reject", "edit", "comment", "apply", "undo"]
    hunk: int | None = None
    comment: str = ""
    files: dict[str, tuple[str, str]] = {}
    """Path to (hash before, hash after)."""
    by: str = ""
    root: str = ""
    """The source folder it was applied to."""
    before: dict[str, str] = {}
    """Of an application: each file's text before it, so that undo needs nothing else."""
