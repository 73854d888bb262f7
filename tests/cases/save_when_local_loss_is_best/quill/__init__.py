from .arguments import Arguments
from .control import BestLoss, Control
from .engine import Engine

__all__ = ["Arguments", "BestLoss", "Control", "Engine"]
