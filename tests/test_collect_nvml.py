"""NVML's own types and errors, with the driver's functions made up."""

import math
from types import SimpleNamespace

import pytest

from eroica.collect import nvml

pynvml = pytest.importorskip("pynvml")


@pytest.fixture
def driver(monkeypatch):
    """One GPU whose answers are in a dictionary; what is not there is not supported."""
    answers = {"shut": 0}

    def unsupported(*_):
        raise pynvml.NVMLError_NotSupported()

    def answer(name):
        return lambda *args: answers[name](*args) if name in answers else unsupported()

    for name in dir(pynvml):
        if name.startswith("nvmlDeviceGet"):
            monkeypatch.setattr(pynvml, name, answer(name))
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: answers.update(shut=1))
    answers["nvmlDeviceGetCount"] = lambda: 1
    answers["nvmlDeviceGetHandleByIndex"] = lambda index: f"device {index}"
    return answers


def field(number, value, kind, name, status=0):
    found = pynvml.c_nvmlFieldValue_t()
    found.fieldId, found.valueType, found.nvmlReturn = number, kind, status
    setattr(found.value, name, value)
    return found


def test_clocks_heat_and_load_are_in_plain_units(driver):
    driver["nvmlDeviceGetUtilizationRates"] = lambda device: SimpleNamespace(gpu=83, memory=41)
    driver["nvmlDeviceGetClockInfo"] = lambda device, kind: {pynvml.NVML_CLOCK_SM: 1980}[kind]
    driver["nvmlDeviceGetTemperature"] = lambda device, sensor: 64
    driver["nvmlDeviceGetPowerUsage"] = lambda device: 687_500
    gpus = nvml.Nvml()
    assert gpus.read(0, "utilization") == 0.83 and gpus.read(0, "memory_activity") == 0.41
    assert gpus.read(0, "sm_clock_hz") == 1.98e9
    assert gpus.read(0, "temperature_c") == 64 and gpus.read(0, "power_w") == 687.5
    gpus.close()
    assert driver["shut"] == 1


@pytest.mark.parametrize(
    ("reasons", "throttled", "capped"),
    [
        (pynvml.nvmlClocksThrottleReasonNone, 0, 0),
        (pynvml.nvmlClocksThrottleReasonGpuIdle, 0, 0),
        (pynvml.nvmlClocksThrottleReasonHwSlowdown, 1, 0),
        (pynvml.nvmlClocksThrottleReasonHwThermalSlowdown, 1, 0),
        (pynvml.nvmlClocksThrottleReasonSwThermalSlowdown, 1, 0),
        (pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown, 1, 0),
        (pynvml.nvmlClocksThrottleReasonSwPowerCap, 0, 1),
        (pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting, 0, 0),
    ],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_reasons_of_throttling_are_told_apart(
    driver, monkeypatch, reasons, throttled, capped, is_new
):
    newer, older = (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    )
    if not is_new:
        monkeypatch.delattr(pynvml, newer)
    driver[newer if is_new else older] = lambda device: reasons
    gpus = nvml.Nvml()
    assert (gpus.read(0, "throttled"), gpus.read(0, "power_capped")) == (throttled, capped)


def test_counters_come_in_whatever_type_the_driver_gives(driver):
    asked = []

    def fields(device, wanted):
        asked.extend(wanted)
        return [
            field(4, 3, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, "ullVal"),
            field(94, 7, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, "uiVal"),
            field(52, 2.5, pynvml.NVML_VALUE_TYPE_DOUBLE, "dVal"),
            field(59, 9, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, "uiVal", status=3),
        ]

    driver["nvmlDeviceGetFieldValues"] = fields
    found = nvml.Nvml().fields(0, [(4, 0), (94, 0), (52, 0), (59, 0)])
    assert found[:3] == [3, 7, 2.5] and math.isnan(found[3])
    assert asked == [(4, 0), (94, 0), (52, 0), (59, 0)]


def test_the_numbers_of_the_fields_are_those_of_the_library():
    names = {
        "NVML_FI_DEV_PCIE_COUNT_TX_BYTES": "pcie_tx_bytes_per_s",
        "NVML_FI_DEV_PCIE_COUNT_RX_BYTES": "pcie_rx_bytes_per_s",
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": "nvlink_tx_bytes_per_s",
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": "nvlink_rx_bytes_per_s",
        "NVML_FI_DEV_ECC_DBE_VOL_TOTAL": "ecc_uncorrected_errors",
        "NVML_FI_DEV_ECC_SBE_VOL_TOTAL": "ecc_corrected_errors",
        "NVML_FI_DEV_PCIE_REPLAY_COUNTER": "link_replays",
        "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": "nvlink_replay_errors",
        "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": "nvlink_recovery_errors",
        "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": "nvlink_crc_errors",
    }
    known = {
        number: counter.name
        for table in (nvml._FAST_FIELDS, nvml._SLOW_FIELDS)
        for (number, _), counter in table.items()
    }
    assert known == {getattr(pynvml, name): said for name, said in names.items()}


def test_a_device_that_supports_nothing_gives_no_counters(driver):
    gpus = nvml.Nvml()
    assert nvml.fast_source(gpus, 0).counters == () and nvml.slow_source(gpus, 0).counters == ()
    assert nvml.gpu_of(gpus, 7, 0, {}) == 0, "told by the local rank"


def test_names_come_as_bytes_from_older_libraries(driver):
    driver["nvmlDeviceGetName"] = lambda device: b"NVIDIA H200"
    driver["nvmlDeviceGetUUID"] = lambda device: "GPU-12"
    driver["nvmlDeviceGetComputeRunningProcesses"] = lambda device: [SimpleNamespace(pid=41)]
    gpus = nvml.Nvml()
    assert (gpus.count(), gpus.name(0), gpus.uuid(0), gpus.pids(0)) == (
        1,
        "NVIDIA H200",
        "GPU-12",
        [41],
    )


def test_without_a_driver_or_a_library_it_is_said_what_is_missing(monkeypatch):
    def none():
        raise pynvml.NVMLError_LibraryNotFound()

    monkeypatch.setattr(pynvml, "nvmlInit", none)
    with pytest.raises(nvml.NoGpus, match="no NVIDIA driver answers"):
        nvml.Nvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with pytest.raises(nvml.NoGpus, match="pip install nvidia-ml-py"):
        nvml.Nvml()
