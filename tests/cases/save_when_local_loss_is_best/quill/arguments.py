from dataclasses import dataclass


@dataclass
class Arguments:
    output_dir: str = "out"
    learning_rate: float = 1e-3
    max_steps: int = 200
    logging_steps: int = 10
    eval_steps: int = 30
    save_limit: int = 2
