"""What a condition depends on: the rank, local data, time, chance, files, or nothing local.

A light data flow: names are followed through assignments, ``self`` attributes, parameters (to
their call sites) and returns of project functions, a few steps deep. It errs towards ``data``:
what nothing is known of may differ between ranks.
"""

import ast
import builtins
from collections.abc import Iterable

from eroica.localize.source import FunctionInfo, Project
from eroica.localize.source_calls import Calls, collective_kind, dotted
from eroica.localize.source_flow import blocks
from eroica.localize.source_values import (
    STEP_NAMES,
    Assigned,
    argument_of,
    assigned_values,
)

RANK, DATA, TIME, RANDOM, FILE = "rank", "data", "time", "random", "file"
STEP, CONFIG, AGREED = "step", "config", "agreed"
REGISTERED = "registered"
"""Something is added to a collection on some ranks only."""
LOCAL = frozenset({RANK, DATA, TIME, RANDOM, FILE})
"""Tags under which ranks may decide differently."""

_RANK_CALLS = frozenset(
    {"get_rank", "get_local_rank", "get_global_rank", "get_group_rank", "get_coordinate"}
    | {"is_main_process", "is_master", "is_rank_zero", "is_global_zero", "get_node_local_rank"}
    | {"get_data_parallel_rank", "get_tensor_model_parallel_rank", "process_index"}
    | {"get_pipeline_model_parallel_rank", "is_first_rank", "is_last_rank", "is_chief"}
)
_RANK_WORDS = frozenset({"rank", "ranks", "rank0", "master", "leader", "chief", "coordinator"})
_RANK_NAMES = frozenset(
    {"is_main_process", "is_main", "main_process", "is_local_main_process", "is_global_zero"}
    | {"process_index", "is_primary", "is_head", "is_rank_zero", "node_rank", "is_first_node"}
)
_OTHER_RANKS = frozenset({"world", "lora", "low", "matrix", "full", "svd", "adapter"})
"""Beside these words a rank is a matrix's, or a number of ranks."""
_TIME_CALLS = ("time.", "datetime.", "perf_counter", "monotonic")
_RANDOM_CALLS = ("random.", "numpy.random", "np.random", "torch.rand", "torch.randint", "rng.")
_FILE_CALLS = ("os.path.", "os.listdir", "os.stat", "os.access", "glob.", "shutil.", "pathlib.")
_FILE_METHODS = frozenset({"exists", "is_file", "is_dir", "isfile", "isdir", "stat", "iterdir"})
_CONFIG_NAMES = frozenset({"args", "cfg", "config", "conf", "opt", "opts", "hparams", "params"})
_SYNCED = frozenset(
    {"all_reduce", "broadcast", "broadcast_object_list", "all_gather", "all_gather_object"}
    | {"all_gather_into_tensor", "all_to_all"}
)
"""Collectives after which every rank holds the same: not ``reduce`` or ``gather``."""

Tags = frozenset[str]
NOTHING: Tags = frozenset()


def is_rank_name(name: str) -> bool:
    """Whether a name says it holds a rank or a question about it."""
    if name in _RANK_NAMES:
        return True
    words = name.lower().strip("_").split("_")
    if _OTHER_RANKS & set(words) or words[0] in ("num", "n"):
        return False
    return bool(_RANK_WORDS & set(words))


_KEEPS_RANK = frozenset({"int", "str", "bool", "divmod", "len", "min", "max", "abs"})


def _as_data(tags: Tags) -> Tags:
    """What is picked or computed by rank is the rank's own data, no longer a test of the rank."""
    return (tags - {RANK}) | {DATA} if RANK in tags else tags


class Depends:
    """Answers what expressions of one project depend on; answers are remembered."""

    def __init__(self, project: Project, calls: Calls) -> None:
        self.project, self.calls = project, calls
        self._names: dict[tuple[int, str], Tags] = {}
        self._attributes: dict[tuple[str | None, str], Tags] = {}
        self._returns: dict[int, Tags] = {}

    def of(self, node: ast.expr, function: FunctionInfo, depth: int = 4) -> Tags:
        """Return the tags of everything an expression reads."""
        if depth <= 0:
            return frozenset({DATA})
        if isinstance(node, ast.Constant):
            return NOTHING
        if isinstance(node, ast.Name):
            return self._name(node.id, function, depth)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, function, depth)
        if isinstance(node, ast.Call):
            return self._call(node, function, depth)
        if isinstance(node, ast.Subscript) and self._is_environment(node.value, function):
            return self._environment(node.slice)
        if isinstance(node, ast.Subscript):
            return self.of(node.value, function, depth) | _as_data(
                self.of(node.slice, function, depth)
            )
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            parts: list[ast.expr] = [g.iter for g in node.generators]
            parts += [c for g in node.generators for c in g.ifs]
            return self._union(parts, function, depth)
        if isinstance(node, ast.Lambda):
            return NOTHING
        children = [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
        return self._union(children, function, depth)

    def _union(self, nodes: Iterable[ast.expr], function: FunctionInfo, depth: int) -> Tags:
        return frozenset().union(*(self.of(node, function, depth) for node in nodes))

    def _is_environment(self, node: ast.expr, function: FunctionInfo) -> bool:
        return dotted(node, function.module) in ("os.environ", "environ")

    def _environment(self, key: ast.expr | None) -> Tags:
        name = key.value if isinstance(key, ast.Constant) else ""
        return frozenset({RANK if isinstance(name, str) and "RANK" in name else CONFIG})

    # calls
    def _call(self, node: ast.Call, function: FunctionInfo, depth: int) -> Tags:
        name = dotted(node.func, function.module)
        last = name.rpartition(".")[2]
        arguments = [*node.args, *(k.value for k in node.keywords)]
        if last in ("get_world_size", "device_count", "is_initialized", "is_available"):
            return frozenset({CONFIG})
        if last in _RANK_CALLS:
            return frozenset({RANK})
        if name in ("os.environ.get", "os.getenv", "environ.get"):
            return self._environment(node.args[0] if node.args else None)
        if name.startswith(_TIME_CALLS) or last in ("perf_counter", "monotonic", "time_ns"):
            return frozenset({TIME})
        if name.startswith(_RANDOM_CALLS) or last in ("rand", "randn", "randint", "random"):
            return frozenset({RANDOM})
        if name.startswith(_FILE_CALLS) or last in _FILE_METHODS:
            return frozenset({FILE})
        if collective_kind(node, function.module) is not None:
            return frozenset({AGREED})
        entered = self.calls.resolve(node, function)
        is_bare = not arguments and not entered
        if is_bare and is_rank_name(last):
            return frozenset({RANK})
        inside = [self.returns(callee, depth - 1) for callee in entered]
        if any(AGREED in tags for tags in inside):
            return frozenset({AGREED})
        tags = self._union(arguments, function, depth - 1)
        if last not in _KEEPS_RANK:
            tags = _as_data(tags)
        base = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        if isinstance(node.func, ast.Attribute | ast.Call):
            tags |= self.of(base, function, depth - 1)
        tags = tags.union(*inside)
        if isinstance(node.func, ast.Name) and is_bare and not _is_builtin(name):
            return frozenset({DATA})
        return tags

    def returns(self, function: FunctionInfo, depth: int = 3) -> Tags:
        """Return the tags of what a project function gives back."""
        key = id(function.node)
        if key not in self._returns:
            self._returns[key] = NOTHING  # ends recursion
            values = [
                n.value
                for n in function.own_nodes
                if isinstance(n, ast.Return | ast.Yield)
                if n.value
            ]
            tags = self._union(values, function, depth)
            if function.name == "__init__":
                tags = NOTHING
            self._returns[key] = tags
        return self._returns[key]

    # attributes
    def _attribute(self, node: ast.Attribute, function: FunctionInfo, depth: int) -> Tags:
        if is_rank_name(node.attr):
            return frozenset({RANK})
        name = dotted(node, function.module)
        if node.attr == "training" or name.split(".")[0] in _CONFIG_NAMES:
            return frozenset({CONFIG})
        base = node.value
        if isinstance(base, ast.Name) and base.id in ("self", "cls"):
            if node.attr in _CONFIG_NAMES:
                return frozenset({CONFIG})
            return self._field(function.class_name, node.attr, depth)
        if isinstance(base, ast.Attribute) and base.attr in _CONFIG_NAMES:
            return frozenset({CONFIG})
        if node.attr == "grad":
            return frozenset({DATA})
        return self.of(base, function, depth - 1)

    def _field(self, class_name: str | None, name: str, depth: int) -> Tags:
        key = (class_name, name)
        if key not in self._attributes:
            self._attributes[key] = NOTHING
            tags: Tags = NOTHING
            is_known = False
            for method in self.project.functions:
                if method.class_name != class_name:
                    continue
                for value in assigned_values(method, f"self.{name}"):
                    is_known = True
                    tags |= self._value(value, f"self.{name}", method, depth - 1)
            self._attributes[key] = tags if is_known else frozenset({DATA})
        return self._attributes[key]

    # names
    def _name(self, name: str, function: FunctionInfo, depth: int) -> Tags:
        if is_rank_name(name):
            return frozenset({RANK})
        if name in ("True", "False", "None") or name in _CONFIG_NAMES or "world" in name:
            return frozenset({CONFIG})
        key = (id(function.node), name)
        if key not in self._names:
            self._names[key] = NOTHING  # x = x + 1 depends on what x was
            self._names[key] = self._resolve_name(name, function, depth)
        return self._names[key]

    def _resolve_name(self, name: str, function: FunctionInfo, depth: int) -> Tags:
        if _is_synced(name, function):
            return frozenset({AGREED})
        if any(True for _ in assigned_values(function, name)):
            return self._here(name, function, depth - 1)
        if name in function.parameters:
            return self._parameter(name, function, depth)
        if name in function.module.imports:
            return NOTHING
        outer = function.module.functions[-1]
        if name in function.module.rebound_globals:
            setters = [f for f in function.module.functions if f is not function]
            return frozenset().union(*(self._here(name, f, depth - 1) for f in setters))
        if function is not outer:
            for enclosing in function.module.functions[:-1]:
                if _contains(enclosing.node, function.node) and enclosing is not function:
                    tags = self._name(name, enclosing, depth - 1)
                    if tags:
                        return tags
            return (
                self._name(name, outer, depth - 1)
                if list(assigned_values(outer, name))
                else NOTHING
            )
        return NOTHING

    def _here(self, name: str, function: FunctionInfo, depth: int) -> Tags:
        values = assigned_values(function, name)
        return frozenset().union(*(self._value(v, name, function, depth) for v in values))

    def _value(self, value: "Assigned", name: str, function: FunctionInfo, depth: int) -> Tags:
        if value.is_counter:
            return frozenset({STEP})
        tags = self.of(value.node, function, depth)
        for block in blocks(function, value.node.lineno):
            if block.kind == "if" and block.test is not None:
                names = {n.id for n in ast.walk(block.test) if isinstance(n, ast.Name)}
                if name not in names:
                    control = self.of(block.test, function, depth - 1)
                    if value.is_mutation and RANK in control:
                        control |= {REGISTERED}
                    tags |= control
        return tags

    def _parameter(self, name: str, function: FunctionInfo, depth: int) -> Tags:
        if name in ("self", "cls"):
            return NOTHING
        if name in STEP_NAMES:
            return frozenset({STEP})
        sites = self.calls.sites(function)[:6]
        if not sites or depth <= 1:
            return frozenset({DATA})
        tags: Tags = NOTHING
        for caller, call in sites:
            argument = argument_of(call, function, name)
            if argument is not None:
                tags |= self.of(argument, caller, depth - 1)
        return tags


def _is_synced(name: str, function: FunctionInfo) -> bool:
    """Whether a name is handed to a collective that leaves the same value on every rank."""
    for node in function.own_nodes:
        if isinstance(node, ast.Call) and node.args:
            known = collective_kind(node, function.module)
            if known and known[0] in _SYNCED:
                first = node.args[0]
                names = {n.id for n in ast.walk(first) if isinstance(n, ast.Name)}
                if name in names and not isinstance(first, ast.Call):
                    return True
    return False


def _contains(outer: ast.AST, inner: ast.AST) -> bool:
    start, end = getattr(outer, "lineno", None), getattr(outer, "end_lineno", None)
    line = getattr(inner, "lineno", None)
    return start is not None and end is not None and line is not None and start < line <= end


def _is_builtin(name: str) -> bool:
    return hasattr(builtins, name)
