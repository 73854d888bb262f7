"""Evaluate a condition for one rank, as far as it is made of the rank, the world and constants."""

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from eroica.localize.source import FunctionInfo
from eroica.localize.source_calls import Calls, dotted
from eroica.localize.source_depend import is_rank_name
from eroica.localize.source_flow import blocks
from eroica.localize.source_values import argument_of, assigned_values

Value: TypeAlias = Any
UNKNOWN: Value = object()
SOMETHING: Value = object()
"""An object, not None, whose truth is its class's business; taken as true."""
_COMPARE: dict[type[ast.cmpop], Callable[[Value, Value], Value]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_BINARY: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.RShift: operator.rshift,
    ast.LShift: lambda a, b: a << b if b < 64 else UNKNOWN,
}
_MAIN_NAMES = (
    *("is_main", "main_process", "master", "is_master", "is_rank_zero", "is_rank0"),
    *("is_global_zero", "is_chief"),
)
_LIMIT = 100_000  # larger ranges are not walked


@dataclass
class RankEvaluator:
    """Values of expressions as one rank sees them; UNKNOWN where they are not made of its rank."""

    calls: Calls
    rank: int
    world_size: int
    local_rank: int | None = None

    def truth(self, test: ast.expr, function: FunctionInfo) -> bool | None:
        """Return whether the test holds on this rank; None where that depends on more."""
        value = self.value(test, function, 12)
        if value is UNKNOWN or isinstance(value, list | dict):
            return None  # a container made here may be filled or emptied later
        return bool(value)

    def value(self, node: ast.expr, function: FunctionInfo, depth: int) -> Value:
        if depth <= 0:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.BoolOp):
            return self._bool(node, function, depth)
        if isinstance(node, ast.UnaryOp):
            inner = self.value(node.operand, function, depth)
            if inner is UNKNOWN:
                return UNKNOWN
            if isinstance(node.op, ast.Not):
                return not inner
            return -inner if isinstance(node.op, ast.USub) and isinstance(inner, int) else UNKNOWN
        if isinstance(node, ast.Compare):
            return self._compare(node, function, depth)
        if isinstance(node, ast.BinOp):
            pair = [self.value(n, function, depth - 1) for n in (node.left, node.right)]
            if any(isinstance(part, str | bytes | list | tuple) for part in pair):
                return UNKNOWN  # texts and lists say no rank, and may be of any length
            return _apply(_BINARY.get(type(node.op)), *pair)
        if isinstance(node, ast.IfExp):
            test = self.value(node.test, function, depth - 1)
            if test is UNKNOWN:
                return UNKNOWN
            return self.value(node.body if test else node.orelse, function, depth - 1)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            items = [self.value(item, function, depth - 1) for item in node.elts]
            return UNKNOWN if any(i is UNKNOWN for i in items) else items
        if isinstance(node, ast.Call):
            return self._call(node, function, depth)
        if isinstance(node, ast.Name):
            return self._name(node.id, function, depth)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, function, depth)
        if isinstance(node, ast.Subscript) and dotted(node.value, function.module) == "os.environ":
            return self._environment(node.slice)
        return UNKNOWN

    def _bool(self, node: ast.BoolOp, function: FunctionInfo, depth: int) -> Value:
        values = [self.value(v, function, depth - 1) for v in node.values]
        decisive = isinstance(node.op, ast.Or)
        if any(v is not UNKNOWN and bool(v) is decisive for v in values):
            return decisive
        return UNKNOWN if any(v is UNKNOWN for v in values) else not decisive

    def _compare(self, node: ast.Compare, function: FunctionInfo, depth: int) -> Value:
        left = self.value(node.left, function, depth - 1)
        for kind, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node, function, depth - 1)
            if isinstance(kind, ast.Is | ast.IsNot) and right is None and left is not UNKNOWN:
                result: Value = (left is None) == isinstance(kind, ast.Is)
            else:
                result = _apply(_COMPARE.get(type(kind)), left, right)
            if result is UNKNOWN or not result:
                return result
            left = right
        return True

    def _call(self, node: ast.Call, function: FunctionInfo, depth: int) -> Value:
        name = dotted(node.func, function.module)
        last = name.rpartition(".")[2]
        if last in ("get_rank", "get_global_rank") and not node.args and not node.keywords:
            return self.rank
        if last in ("get_local_rank", "get_node_local_rank"):
            return self._local()
        if last == "get_world_size" and not node.args and not node.keywords:
            return self.world_size
        if name in ("os.environ.get", "os.getenv") and node.args:
            return self._environment(node.args[0])
        if last in ("int", "bool", "str", "list", "set", "tuple", "range", "divmod", "len"):
            return self._builtin(last, node, function, depth)
        entered = self.calls.resolve(node, function)
        if len(entered) == 1 and entered[0].name != "__init__":
            values = [
                n.value for n in entered[0].own_nodes if isinstance(n, ast.Return) and n.value
            ]
            if len(values) == 1:
                return self.value(values[0], entered[0], depth - 1)
            return UNKNOWN
        if (entered and entered[0].name == "__init__") or last[:1].isupper():
            return SOMETHING
        if last in ("is_initialized", "is_available"):
            return True
        is_bare = not node.args and not node.keywords
        return self._by_word(last) if is_bare and not entered else UNKNOWN

    def _builtin(self, name: str, node: ast.Call, function: FunctionInfo, depth: int) -> Value:
        given = [self.value(a, function, depth - 1) for a in node.args]
        if any(g is UNKNOWN or g is SOMETHING for g in given) or node.keywords:
            return UNKNOWN
        if name == "range" and any(isinstance(g, int) and abs(g) > _LIMIT for g in given):
            return UNKNOWN
        makers: dict[str, Callable[..., Value]] = {
            "int": int, "bool": bool, "str": str, "list": list, "set": set,
            "tuple": tuple, "range": range, "divmod": divmod, "len": len,
        }  # fmt: skip
        return _apply(makers[name], *given)

    def _environment(self, key: ast.expr) -> Value:
        name = key.value if isinstance(key, ast.Constant) else ""
        known = {"RANK": self.rank, "LOCAL_RANK": self._local(), "WORLD_SIZE": self.world_size}
        value = known.get(name, UNKNOWN) if isinstance(name, str) else UNKNOWN
        return value if value is UNKNOWN else str(value)

    def _local(self) -> Value:
        return UNKNOWN if self.local_rank is None else self.local_rank

    def _attribute(self, node: ast.Attribute, function: FunctionInfo, depth: int) -> Value:
        base = node.value
        if isinstance(base, ast.Name) and base.id == "self" and function.class_name:
            found = self._field(node.attr, function.class_name, depth)
            if found is not UNKNOWN:
                return found
        return self._by_word(node.attr)

    def _field(self, name: str, class_name: str, depth: int) -> Value:
        result = UNKNOWN
        for method in self.calls.project.functions:
            if method.class_name == class_name:
                value = self._last_assigned(f"self.{name}", method, depth)
                result = value if value is not UNKNOWN else result
        return result

    def _by_word(self, name: str) -> Value:
        lowered = name.lower().strip("_")
        if lowered in ("rank", "global_rank", "process_index", "my_rank", "myrank"):
            return self.rank
        if lowered == "local_rank":
            return self._local()
        if lowered in ("world_size", "num_processes", "world", "nranks"):
            return self.world_size
        if lowered.startswith(_MAIN_NAMES):
            return self.rank == 0
        return UNKNOWN

    def _name(self, name: str, function: FunctionInfo, depth: int) -> Value:
        value = self._last_assigned(name, function, depth)
        if value is not UNKNOWN:
            return value
        if name in function.parameters:
            sites = self.calls.sites(function)[:4]
            given = [(argument_of(call, function, name), caller) for caller, call in sites]
            values = [self.value(a, c, depth - 1) if a else UNKNOWN for a, c in given]
            if values and all(v is not UNKNOWN and v == values[0] for v in values):
                return values[0]
        elif not function.is_module and name not in function.module.rebound_globals:
            value = self._last_assigned(name, function.module.functions[-1], depth)
            if value is not UNKNOWN:
                return value
            for outer in function.module.functions[:-1]:
                is_outer = function.qualified_name.startswith(outer.qualified_name + ".")
                if is_outer and not outer.is_module:
                    value = self._name(name, outer, depth - 1)
                    if value is not UNKNOWN:
                        return value
        return self._by_word(name) if is_rank_name(name) or "world" in name else UNKNOWN

    def _last_assigned(self, name: str, function: FunctionInfo, depth: int) -> Value:
        """The value of the last assignment whose conditions hold on this rank."""
        result = UNKNOWN
        for assigned in assigned_values(function, name):
            if assigned.is_counter or assigned.is_mutation:
                return UNKNOWN
            holds = self._reached(assigned.node, function, depth)
            if holds is False:
                continue
            value = self.value(assigned.node, function, depth - 1)
            value = self._part(assigned.node, name, function, value)
            if value is UNKNOWN or (holds is None and value != result):
                return UNKNOWN
            result = value
        return result

    def _part(self, node: ast.expr, name: str, function: FunctionInfo, value: Value) -> Value:
        """``a, b = divmod(...)``: the element of a tuple that the name stands for."""
        if not isinstance(value, tuple | list):
            return value
        for statement in function.own_nodes:
            if isinstance(statement, ast.Assign) and statement.value is node:
                target = statement.targets[0]
                if isinstance(target, ast.Tuple) and len(target.elts) == len(value):
                    for position, inner in enumerate(target.elts):
                        if ast.unparse(inner) == name:
                            return value[position]
        return value

    def _reached(self, node: ast.expr, function: FunctionInfo, depth: int) -> bool | None:
        state: bool | None = True
        for block in blocks(function, node.lineno):
            if block.kind == "if" and block.test is not None:
                value = self.value(block.test, function, depth - 2)
                if value is UNKNOWN:
                    state = None if state else state
                elif bool(value) != (block.branch == "body"):
                    return False
        return state


def _apply(function: Callable[..., Value] | None, *values: Value) -> Value:
    if function is None or any(v is UNKNOWN or v is SOMETHING for v in values):
        return UNKNOWN
    try:
        return function(*values)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return UNKNOWN
