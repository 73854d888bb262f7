"""Counters of the GPUs through NVML, behind a protocol so that a fake can stand in.

Read fast: utilization and, where the driver tells them as counters, bytes over PCIe and NVLink.
Read slowly: clocks, temperature, power, reasons of throttling, errors. Each call that a device
does not support is left out from then on; nothing here was written for one generation only.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from eroica.collect.counters import NAN, Counter, Source

logger = logging.getLogger(__name__)
T = TypeVar("T")

THROTTLED = 0x8 | 0x20 | 0x40 | 0x80
"""Reasons that slow a GPU against its owner's will: hardware, heat (both kinds), power brake."""
POWER_CAPPED = 0x4
_ALL_LINKS = 0xFFFFFFFF  # scope of an NVLink field: summed over links
_KIB = 1024.0

Value = tuple[int, int]
"""Field id and scope."""


class Gpus(Protocol):
    """What is asked of the driver; any call may raise what NVML raises."""

    def count(self) -> int: ...

    def name(self, index: int) -> str: ...

    def uuid(self, index: int) -> str: ...

    def pids(self, index: int) -> list[int]: ...

    def read(self, index: int, what: str) -> float: ...

    def fields(self, index: int, wanted: Sequence[Value]) -> list[float]: ...

    def close(self) -> None: ...


class NoGpus(Exception):
    """NVML cannot be used; ``str()`` is a reason for people."""


class Nvml:
    """NVML itself, through nvidia-ml-py (``pynvml``)."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise NoGpus("GPU counters: pip install nvidia-ml-py") from None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except pynvml.NVMLError as error:
            raise NoGpus(f"GPU counters: no NVIDIA driver answers ({error})") from None

    def count(self) -> int:
        return len(self._handles)

    def name(self, index: int) -> str:
        return _text(self._nvml.nvmlDeviceGetName(self._handles[index]))

    def uuid(self, index: int) -> str:
        return _text(self._nvml.nvmlDeviceGetUUID(self._handles[index]))

    def pids(self, index: int) -> list[int]:
        found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handles[index])
        return [int(one.pid) for one in found]

    def read(self, index: int, what: str) -> float:
        return float(_READ[what](self._nvml, self._handles[index]))

    def fields(self, index: int, wanted: Sequence[Value]) -> list[float]:
        """Return each field's number, NaN where the device does not have it."""
        found = self._nvml.nvmlDeviceGetFieldValues(self._handles[index], list(wanted))
        return [_field(self._nvml, one) for one in found]

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _field(nvml: Any, one: Any) -> float:  # noqa: ANN401
    if one.nvmlReturn != nvml.NVML_SUCCESS:
        return NAN
    names = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    name = names.get(one.valueType)
    return float(getattr(one.value, name)) if name else NAN


def _reasons(nvml: Any, device: Any) -> int:  # noqa: ANN401
    newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return int((newer or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(device))


_READ: dict[str, Callable[[Any, Any], float]] = {
    "utilization": lambda nvml, device: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
    "memory_activity": lambda nvml, device: nvml.nvmlDeviceGetUtilizationRates(device).memory / 100,
    "sm_clock_hz": lambda nvml, device: nvml.nvmlDeviceGetClockInfo(device, 1) * 1e6,
    "sm_clock_limit_hz": lambda nvml, device: nvml.nvmlDeviceGetMaxClockInfo(device, 1) * 1e6,
    "temperature_c": lambda nvml, device: nvml.nvmlDeviceGetTemperature(device, 0),
    "power_w": lambda nvml, device: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
    "throttled": lambda nvml, device: bool(_reasons(nvml, device) & THROTTLED),
    "power_capped": lambda nvml, device: bool(_reasons(nvml, device) & POWER_CAPPED),
    "link_width": lambda nvml, device: nvml.nvmlDeviceGetCurrPcieLinkWidth(device),
    "link_width_limit": lambda nvml, device: nvml.nvmlDeviceGetMaxPcieLinkWidth(device),
}
_FAST = ("utilization", "memory_activity")
_SLOW = tuple(name for name in _READ if name not in _FAST)
_FAST_FIELDS: dict[Value, Counter] = {
    (197, 0): Counter("pcie_tx_bytes_per_s", "rate"),
    (198, 0): Counter("pcie_rx_bytes_per_s", "rate"),
    (138, _ALL_LINKS): Counter("nvlink_tx_bytes_per_s", "rate", _KIB),
    (139, _ALL_LINKS): Counter("nvlink_rx_bytes_per_s", "rate", _KIB),
}
_SLOW_FIELDS: dict[Value, Counter] = {
    (4, 0): Counter("ecc_uncorrected_errors", "count"),
    (3, 0): Counter("ecc_corrected_errors", "count"),
    (94, 0): Counter("link_replays", "count"),
    (52, 0): Counter("nvlink_replay_errors", "count"),
    (59, 0): Counter("nvlink_recovery_errors", "count"),
    (38, 0): Counter("nvlink_crc_errors", "count"),
}


class GpuSource:
    """Some counters of one GPU; what the device cannot tell is asked for once only."""

    def __init__(
        self, gpus: Gpus, index: int, calls: Sequence[str], fields: dict[Value, Counter]
    ) -> None:
        self._gpus = gpus
        self._index = index
        self._calls = [name for name in calls if _works(partial(gpus.read, index, name))]
        told = _fields(gpus, index, list(fields))
        known = [pair for pair, value in zip(fields.items(), told, strict=True) if value == value]
        self._fields = [field for field, _ in known]
        of_calls = [Counter(f"gpu{index}.{name}") for name in self._calls]
        of_fields = [Counter(f"gpu{index}.{one.name}", one.form, one.scale) for _, one in known]
        self.counters = (*of_calls, *of_fields)

    def read(self) -> Sequence[float]:
        values = [_value(partial(self._gpus.read, self._index, name)) for name in self._calls]
        if self._fields:
            values += _fields(self._gpus, self._index, self._fields)
        return values

    def close(self) -> None:
        """Nothing is held by one GPU."""


def _told(call: Callable[[], T], otherwise: T) -> T:
    try:
        return call()
    except Exception as error:  # NVML has a class for each of its errors, and the driver may go
        logger.debug("NVML: %s", error)
        return otherwise


def _value(call: Callable[[], float]) -> float:
    return _told(call, NAN)


def _works(call: Callable[[], float]) -> bool:
    value = _value(call)
    return value == value


def _fields(gpus: Gpus, index: int, wanted: Sequence[Value]) -> list[float]:
    return _told(lambda: gpus.fields(index, wanted), [NAN] * len(wanted))


def fast_source(gpus: Gpus, index: int) -> Source:
    """What a GPU does: utilization and bytes over its links."""
    return GpuSource(gpus, index, _FAST, _FAST_FIELDS)


def slow_source(gpus: Gpus, index: int) -> Source:
    """How a GPU is: clocks, heat, throttling, errors."""
    return GpuSource(gpus, index, _SLOW, _SLOW_FIELDS)


def gpu_of(gpus: Gpus, pid: int, local_rank: int, environment: dict[str, str]) -> int | None:
    """Return the index of a rank's GPU: the one it computes on, else the one it should be on.

    In a container the driver may name processes as the host does; then CUDA_VISIBLE_DEVICES and
    the local rank decide. None where that is none of this host's.
    """
    count = gpus.count()
    none: list[int] = []
    for index in range(count):
        if pid in _told(partial(gpus.pids, index), none):
            return index
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return local_rank if local_rank < count else None
    visible = [word.strip() for word in given.split(",") if word.strip()]
    # A launcher may show each rank its own device only.
    place = local_rank if local_rank < len(visible) else 0
    if place >= len(visible):
        return None
    word = visible[place]
    if word.isdigit():
        return int(word) if int(word) < count else None
    uuids = [_told(partial(gpus.uuid, index), "") for index in range(count)]
    return next((index for index, uuid in enumerate(uuids) if uuid.startswith(word)), None)
