from .callbacks import Callback, MetricCard
from .trainer import Trainer

__all__ = ["Callback", "MetricCard", "Trainer"]
