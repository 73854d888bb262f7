class Control:
    """What the engine is asked to do after a step."""

    should_log = should_evaluate = should_save = should_stop = False

    def clear(self):
        self.should_log = self.should_evaluate = self.should_save = self.should_stop = False


class Handler:
    def on_step(self, args, state, control):
        control.should_log = state.step % args.logging_steps == 0
        control.should_evaluate = state.step % args.eval_steps == 0
        control.should_stop = state.step >= args.max_steps

    def on_evaluate(self, args, state, control, metrics):
        pass


class BestLoss(Handler):
    """Asks for a save when an evaluation is better than all before."""

    def __init__(self, greater_is_better=False):
        self.sign = -1 if greater_is_better else 1
        self.best = None

    def on_step(self, args, state, control):
        pass

    def on_evaluate(self, args, state, control, metrics):
        value = self.sign * metrics["eval_loss"]
        if self.best is None or value < self.best:
            self.best = value
            control.should_save = True
