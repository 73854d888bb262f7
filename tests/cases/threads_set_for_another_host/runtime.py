"""Settings of the process, before torch is loaded."""
import os

PROFILES = {"laptop": 1, "node": 12}


def tune(profile="node"):
    threads = str(PROFILES[profile])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = threads
