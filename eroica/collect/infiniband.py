"""Counters of InfiniBand and RoCE ports: bytes for the rate, errors and the rate negotiated."""

from pathlib import Path

from eroica.collect.counters import Counter, FileSource, Kernel, Source

_IB_FAST = {"port_rcv_data": "rx_bytes_per_s", "port_xmit_data": "tx_bytes_per_s"}
_IB_ERRORS = {
    "symbol_error": "symbol_errors",
    "link_error_recovery": "link_recoveries",
    "link_downed": "link_downs",
    "port_rcv_errors": "rx_errors",
    "port_xmit_discards": "discards",
    "port_xmit_wait": "congestion",
}
_IB_HW = {
    "out_of_sequence": "out_of_sequence",
    "packet_seq_err": "sequence_errors",
    "local_ack_timeout_err": "ack_timeouts",
}


def ports(kernel: Kernel) -> dict[str, Path]:
    """Ports by name; ``mlx5_0`` for a device's only port, else ``mlx5_0:2``."""
    found: dict[str, Path] = {}
    for device in sorted((kernel.sys / "class" / "infiniband").glob("*")):
        numbered = sorted((device / "ports").glob("*"))
        for port in numbered:
            found[device.name if len(numbered) == 1 else f"{device.name}:{port.name}"] = port
    return found


def traffic_source(name: str, port: Path) -> Source:
    """Bytes a second of a port; the kernel counts words of four bytes."""
    counters = [Counter(f"ib.{name}.{what}", "rate", 4.0) for what in _IB_FAST.values()]
    paths = [port / "counters" / file for file in _IB_FAST]
    return FileSource(paths, counters, lambda texts: [float(text) for text in texts])


def error_source(name: str, port: Path) -> Source:
    """Errors of a port, and the rate it negotiated (a broken lane shows as a lower rate)."""
    files = {port / "counters" / file: what for file, what in _IB_ERRORS.items()}
    files |= {port / "hw_counters" / file: what for file, what in _IB_HW.items()}
    there = {path: what for path, what in files.items() if path.exists()}
    counters = [Counter(f"ib.{name}.{what}", "count") for what in there.values()]
    counters.append(Counter(f"ib.{name}.link_bits_per_s", "gauge", 1e9))

    def parse(texts: list[bytes]) -> list[float]:
        return [float(text) for text in texts[:-1]] + [float(texts[-1].split()[0])]

    return FileSource([*there, port / "rate"], counters, parse)
