"""Who calls whom in the project, and which calls are, or reach, collectives."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from eroica.localize.source import FunctionInfo, Module, Project
from eroica.records import Place

PLAIN_COLLECTIVES = frozenset(
    {"all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "all_to_all"}
    | {"all_to_all_single", "reduce_scatter", "reduce_scatter_tensor", "broadcast_object_list"}
    | {"scatter_object_list", "gather_object", "monitored_barrier", "all_reduce_coalesced"}
    | {"all_gather_coalesced", "_all_gather_base", "_reduce_scatter_base", "wait_for_everyone"}
    | {"gather_for_metrics", "sync_params_buffers"}
)
"""Names that mean a collective whatever they are called on."""
NAMED_COLLECTIVES = frozenset({"barrier", "broadcast", "reduce", "gather", "scatter", "new_group"})
"""Names that mean one only on torch.distributed, an accelerator or a fabric."""
POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"})
OBJECT_COLLECTIVES = frozenset(
    {"all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"}
)
STATE_COLLECTIVES = frozenset(
    {"get_model_state_dict", "get_state_dict", "get_optimizer_state_dict", "set_state_dict"}
    | {"set_model_state_dict", "set_optimizer_state_dict", "full_tensor", "summon_full_params"}
    | {
        "consolidate_state_dict",
        "full_optim_state_dict",
        "optim_state_dict",
    }
    | {"_optim_state_dict", "rank0_full_state_dict", "save_16bit_model", "redistribute"}
    | {"_zero3_consolidated_16bit_state_dict", "consolidated_16bit_state_dict", "full_state_dict"}
)
"""State dictionaries of sharded models and optimizers: collectives inside."""
_CHECKPOINT_MODULES = ("torch.distributed.checkpoint", "dcp", "dist_cp")
_DISTRIBUTED = ("torch.distributed", "dist", "accelerator", "fabric", "self.accelerator", "hvd")
_WRAPPERS = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"})


@dataclass(frozen=True, eq=False)
class CollectiveCall:
    """A call that is a collective, or reaches one through functions of the project."""

    op: str
    kind: str
    """``collective``, ``object``, ``point_to_point``, ``state``, ``backward``, ``wrapper``."""
    place: Place
    node: ast.Call
    through: tuple[Place, ...] = ()
    """Project calls between the function asked about and the collective, outermost first."""


def dotted(node: ast.expr, module: Module | None = None) -> str:
    """Return ``a.b.c`` of a name or attribute with the import resolved, else ``""``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Call):
        parts.append("()")
        node = ast.Name(id=dotted(node.func) or "?")
    if not isinstance(node, ast.Name):
        return ".".join(reversed([*parts, "?"])) if parts else ""
    head = module.imports.get(node.id, node.id) if module else node.id
    return ".".join([head, *reversed(parts)])


def collective_kind(call: ast.Call, module: Module) -> tuple[str, str] | None:
    """Return (op, kind) where a call is itself a collective, else None."""
    name = dotted(call.func, module)
    if not name:
        return None
    base, _, last = name.rpartition(".")
    if last in OBJECT_COLLECTIVES:
        return last, "object"
    if last in PLAIN_COLLECTIVES:
        return last, "collective"
    distributed = _is_distributed(base, last)
    if last in NAMED_COLLECTIVES and distributed:
        return last, "collective"
    if last in POINT_TO_POINT and distributed:
        return last, "point_to_point"
    if last in STATE_COLLECTIVES:
        return last, "state"
    if last in ("save", "load", "async_save") and base.startswith(_CHECKPOINT_MODULES):
        return f"checkpoint.{last}", "state"
    if last == "save_state" and distributed:
        return last, "state"
    if last == "backward" and base != "torch.autograd":
        return last, "backward"
    if last in _WRAPPERS or name.endswith(".DDP"):
        return last, "wrapper"
    return None


_GROUP_AT = {
    **dict.fromkeys(("barrier", "monitored_barrier"), 0),
    **dict.fromkeys(("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor"), 2),
    **dict.fromkeys(("all_to_all", "all_gather_object", "broadcast_object_list"), 2),
    **dict.fromkeys(("send", "recv", "isend", "irecv"), 2),
    **dict.fromkeys(("reduce", "gather", "scatter", "reduce_scatter", "reduce_scatter_tensor"), 3),
    **dict.fromkeys(("gather_object", "scatter_object_list"), 3),
    "all_to_all_single": 4,
}
"""Position of ``group`` among the arguments (torch/distributed/distributed_c10d.py)."""


def _is_distributed(base: str, last: str) -> bool:
    """Whether what a name is called on is torch.distributed, an accelerator or a fabric.

    ``dist_utils.barrier`` is as good; ``distances.gather`` is a tensor's.
    """
    if f"{base}.".startswith(tuple(f"{one}." for one in _DISTRIBUTED)):
        return True
    holder = base.split(".")[-1]
    is_telling = last in ("barrier", "new_group") and holder.startswith("dist")
    return is_telling or holder in ("dist", "accelerator")


def group_of(call: ast.Call) -> ast.expr | None:
    """Return the process group a collective is given; None where it runs on the default one."""
    given = next((k.value for k in call.keywords if k.arg in ("group", "process_group")), None)
    if given is None:
        position = _GROUP_AT.get(dotted(call.func).rpartition(".")[2])
        if position is not None and position < len(call.args):
            given = call.args[position]
    return None if isinstance(given, ast.Constant) else given


def calls(function: FunctionInfo) -> Iterator[ast.Call]:
    for node in function.own_nodes:
        if isinstance(node, ast.Call):
            yield node


class Calls:
    """The project's call graph: by name, through imports, ``self`` and constructors."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._by_name: dict[str, list[FunctionInfo]] = {}
        self._sites: dict[str, list[tuple[FunctionInfo, ast.Call]]] | None = None
        for info in project.functions:
            self._by_name.setdefault(info.name, []).append(info)

    def resolve(self, call: ast.Call, caller: FunctionInfo) -> list[FunctionInfo]:
        """Return the project functions a call may enter; empty for library calls."""
        name = dotted(call.func, caller.module)
        base, _, last = name.rpartition(".")
        if not last:
            return []
        if last in self._classes:
            return [f for f in self._by_name.get("__init__", []) if f.class_name == last]
        found = self._by_name.get(last, [])
        if not base:
            plain = [f for f in found if f.class_name is None]
            here = [f for f in plain if f.module is caller.module]
            named = here or [f for f in plain if self._nested(f, caller)]
            is_starred = not named and "*" in caller.module.imports  # from utils import *
            return plain if is_starred and len(plain) == 1 else named
        if base in ("self", "cls", "super.()") and caller.class_name:
            own = [f for f in found if f.class_name == caller.class_name]
            return own or [f for f in found if f.class_name in self._family(caller.class_name)]
        made = self._class_of(call.func, caller)
        if made is not None:
            family = {made} | self._family(made)
            own = [f for f in found if f.class_name == made]
            return own or [f for f in found if f.class_name in family]
        plain = [f for f in found if f.class_name is None]
        exact = [f for f in plain if _is_same_module(base, f.module.name)]
        if exact:
            return exact
        handed_on = [f for f in plain if f"{f.module.name}.".startswith(f"{base}.")]
        if len(handed_on) == 1:
            return handed_on  # the package's ``__init__`` imports it from one of its modules
        if base.split(".")[0] in ("torch", "os", "np", "numpy", "time", "json", "threading"):
            return []
        methods = [f for f in found if f.class_name is not None]
        return methods if len(methods) <= 4 and last not in _COMMON_METHODS else []

    def _class_of(self, called: ast.expr, caller: FunctionInfo) -> str | None:
        """The project class of a method's receiver, where one constructor alone is assigned."""
        if not isinstance(called, ast.Attribute):
            return None
        name = dotted(called.value).rpartition(".")[2]
        modules = (
            [caller.module, *self.project.modules]
            if "." in dotted(called.value)
            else [caller.module]
        )
        for module in modules:
            made = module.made_by.get(name, set()) & self._classes
            if made:
                return next(iter(made)) if len(made) == 1 else None
        return None

    @property
    def _classes(self) -> set[str]:
        if not hasattr(self, "_class_names"):
            self._class_names = {n for m in self.project.modules for n in m.classes}
        return self._class_names

    def _nested(self, function: FunctionInfo, caller: FunctionInfo) -> bool:
        return function.module is caller.module or function.name in caller.module.imports

    def _family(self, class_name: str) -> set[str]:
        """Names of the bases of a class, through the project."""
        seen: set[str] = set()
        queue = [class_name]
        while queue:
            name = queue.pop()
            for module in self.project.modules:
                node = module.classes.get(name)
                for base in node.bases if node else []:
                    short = ast.unparse(base).split(".")[-1]
                    if short not in seen:
                        seen.add(short)
                        queue.append(short)
        return seen

    def sites(self, function: FunctionInfo) -> list[tuple[FunctionInfo, ast.Call]]:
        """Return (caller, call) for every call in the project that may enter the function."""
        if self._sites is None:
            self._sites = {}
            for caller in self.project.functions:
                for call in calls(caller):
                    last = dotted(call.func, caller.module).rpartition(".")[2]
                    if last:
                        self._sites.setdefault(last, []).append((caller, call))
        wanted = function.class_name if function.name == "__init__" else function.name
        some = self._sites.get(wanted or "", [])
        return [(c, call) for c, call in some if function in self.resolve(call, c)]

    def collectives(self, function: FunctionInfo, *, depth: int = 4) -> list[CollectiveCall]:
        """Return the collectives a function reaches, its own first, ``depth`` calls deep."""
        return self._reach(function, depth, frozenset())

    def _reach(
        self, function: FunctionInfo, depth: int, seen: frozenset[int]
    ) -> list[CollectiveCall]:
        found: list[CollectiveCall] = []
        deeper: list[CollectiveCall] = []
        for call in calls(function):
            known = collective_kind(call, function.module)
            if known is not None:
                found.append(CollectiveCall(*known, function.place(call.lineno), call))
            elif depth > 0:
                for callee in self.resolve(call, function):
                    if id(callee) in seen or callee is function:
                        continue
                    here = function.place(call.lineno)
                    for inner in self._reach(callee, depth - 1, seen | {id(function)}):
                        through = (here, *inner.through)
                        deeper.append(
                            CollectiveCall(inner.op, inner.kind, inner.place, inner.node, through)
                        )
        return found + deeper


def _is_same_module(imported: str, name: str) -> bool:
    """Whether two dotted names end alike: the root may lie above or below the import path."""
    one, other = f".{imported}", f".{name.removesuffix('.__init__')}"
    return one.endswith(other) or other.endswith(one)


_COMMON_METHODS = frozenset(
    {"get", "put", "items", "keys", "append", "join", "start", "close", "copy", "set", "add"}
    | {"pop", "read", "write", "format", "split", "to", "cpu", "item"}
)
