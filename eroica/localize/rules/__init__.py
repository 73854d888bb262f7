"""One module a family of slow causes; each rule is a function from the job's view to drafts.

Rules see the whole job and nothing of each other; ``ranking`` decides what stands.
"""

from collections.abc import Callable

from eroica.localize.rules.bookkeeping import bookkeeping, python_in_step
from eroica.localize.rules.buckets import small_buckets
from eroica.localize.rules.buffers import buffer_broadcast
from eroica.localize.rules.communication import communication
from eroica.localize.rules.compute import recompilation
from eroica.localize.rules.cores import cores_taken
from eroica.localize.rules.data import dataloader
from eroica.localize.rules.devices import device_faults
from eroica.localize.rules.draft import Draft
from eroica.localize.rules.growth import growth
from eroica.localize.rules.host import checkpoints, garbage_collection, polling
from eroica.localize.rules.memory import memory_pressure
from eroica.localize.rules.modes import dispatch_modes
from eroica.localize.rules.nested import nested_loops
from eroica.localize.rules.ports import bad_ports
from eroica.localize.rules.resync import repeated_sync
from eroica.localize.rules.rotating import rotating
from eroica.localize.rules.sampler import sampler
from eroica.localize.rules.settings import debug_settings, oversubscription, unused_search
from eroica.localize.rules.sharding import small_shards
from eroica.localize.rules.straggler import straggler
from eroica.localize.rules.view import JobView

Rule = Callable[[JobView], list[Draft]]

RULES: tuple[Rule, ...] = (
    straggler,
    debug_settings,
    dispatch_modes,
    oversubscription,
    recompilation,
    communication,
    small_buckets,
    buffer_broadcast,
    small_shards,
    repeated_sync,
    garbage_collection,
    checkpoints,
    growth,
    polling,
    dataloader,
    bookkeeping,
    python_in_step,
    nested_loops,
    sampler,
    unused_search,
    rotating,
    memory_pressure,
    device_faults,
    cores_taken,
    bad_ports,
)
