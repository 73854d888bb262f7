"""Patterns and arrivals of a made-up job whose odd ranks are known, for the report's pictures."""

import numpy as np

from eroica.columns import Arrivals, RankPatterns
from eroica.records import Function

FUNCTIONS = (
    Function(id="d1", kind="python", name="json.loads", file="dataset.py", line=88),
    Function(id="c1", kind="collective", name="all_reduce", group="dp"),
    Function(id="k1", kind="kernel", name="sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128"),
    Function(id="p1", kind="python", name="train_step", file="train.py", line=40),
)


def make_patterns(world_size, odd, *, collectives=40, seed=7):
    """Odd ranks spend 43 % in json.loads, the others 2 % and wait in all_reduce."""
    random = np.random.default_rng(seed)
    patterns = []
    for rank in range(world_size):
        is_odd = rank in odd
        noise = random.normal(0, 0.004, 4)
        beta = np.array([0.43, 0.01, 0.55, 0.01] if is_odd else [0.02, 0.40, 0.55, 0.02]) + noise
        mu = np.array([0.9, 0.5, 0.8, 0.3]) + noise
        ends = (np.arange(collectives) + 1) * 200_000_000
        stays = 5_000_000 if is_odd else 139_000_000 + random.integers(0, 9_000_000, collectives)
        arrivals = Arrivals(
            key_C=tuple(f"dp|all_reduce|{n}" for n in range(collectives)),
            start_ns_C=ends - stays,
            end_ns_C=ends,
            num_bytes_C=np.full(collectives, 4_000_000),
        )
        patterns.append(
            RankPatterns(
                rank=rank,
                functions=FUNCTIONS,
                beta_F=np.abs(beta).astype(np.float32),
                mu_F=np.abs(mu).astype(np.float32),
                sigma_F=np.abs(noise).astype(np.float32),
                count_F=np.full(4, 10, np.int32),
                total_ns_F=(np.abs(beta) * 2e10).astype(np.int64),
                window_ns=20_000_000_000,
                host=f"gpu-{rank // 8:03d}",
                arrivals=arrivals,
            )
        )
    return tuple(patterns)
