"""Loops as they are written: eroica's count of iterations is the loop's own, its result the same.

Each loop runs in one process with the hook and in one without. Those of frameworks need the
``frameworks`` extra.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest
from make_rank import INJECT

from eroica.collect.rings import RingReader, find_rings
from eroica.watch.iteration import Iteration

pytestmark = [pytest.mark.job, pytest.mark.timeout(240)]
pytest.importorskip("torch")

HEAD = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
DATA = TensorDataset(torch.randn(80, 8), torch.randn(80, 1))

def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

def error(model, x, y):
    return (model(x) - y).square().mean()

def position():
    attached = sys.modules.get("_eroica_attached")
    return attached.ring.words[7] if attached else 0

def tell(name, loop):
    start = position()
    count, model = loop()
    total = float(sum(p.double().sum() for p in model.parameters())).hex()
    print("LOOP", json.dumps([name, count, total, start, position()]), flush=True)
"""

PLAIN = """
def plain():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    count = 0
    for epoch in range(2):
        for x, y in DataLoader(DATA, batch_size=4):
            optimizer.zero_grad()
            error(model, x, y).backward()
            optimizer.step()
            count += 1
    return count, model

def no_loader():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(40):
        error(model, *DATA[:8]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return 40, model

def accumulation():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    count = 0
    for epoch in range(3):
        for i, (x, y) in enumerate(DataLoader(DATA, batch_size=2)):
            error(model, x, y).backward()
            if i % 3 == 2:  # the last batch of an epoch is left over
                optimizer.step()
                optimizer.zero_grad()
                count += 1
    return count, model

def evaluation_between():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    count = 0
    for epoch in range(3):
        for x, y in DataLoader(DATA, batch_size=4):
            error(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            count += 1
        with torch.no_grad():
            for x, y in DataLoader(TensorDataset(*DATA[:32]), batch_size=4):
                model(x)
    return count, model

def workers():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    count = 0
    loader = DataLoader(DATA, batch_size=4, num_workers=1, persistent_workers=True)
    for epoch in range(2):
        for x, y in loader:
            error(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            count += 1
    return count, model

def adversaries():
    one, two = network(), network()
    optimizers = [torch.optim.Adam(m.parameters()) for m in (one, two)]
    count = 0
    for x, y in DataLoader(DATA, batch_size=2):
        for _ in range(2):
            optimizers[0].zero_grad()
            (error(one, x, y) + one(x).mean() * two(x).detach().mean()).backward()
            optimizers[0].step()
        optimizers[1].zero_grad()
        (error(two, x, y) - one(x).detach().mean() * two(x).mean()).backward()
        optimizers[1].step()
        count += 1
    return count, torch.nn.ModuleList([one, two])

def lbfgs():
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    x, y = DATA[:]
    def closure():
        optimizer.zero_grad()
        loss = error(model, x, y)
        loss.backward()
        return loss
    for _ in range(25):
        optimizer.step(closure)
    return 25, model

class Clipped(torch.optim.SGD):
    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)

def subclass():
    torch.optim.SGD(network().parameters(), lr=0.1)  # torch wraps both classes' step then
    model = network()
    optimizer = Clipped(model.parameters(), lr=0.01)
    for _ in range(30):
        error(model, *DATA[:8]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return 30, model

def scaler_and_scheduler():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    count = 0
    for x, y in DataLoader(DATA, batch_size=4):
        scaler.scale(error(model, x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
        count += 1
    return count, model

def in_backward():
    model = network()
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}
    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    count = 0
    for x, y in DataLoader(DATA, batch_size=2):
        error(model, x, y).backward()
        count += 1
    return count, model

def compiled():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    forward = torch.compile(model, backend="eager")
    update = torch.compile(lambda: optimizer.step(), backend="eager")
    count = 0
    for x, y in DataLoader(DATA, batch_size=4):
        error(forward, x, y).backward()
        update()
        optimizer.zero_grad()
        count += 1
    return count, model

for loop in (plain, no_loader, accumulation, evaluation_between, workers, adversaries, lbfgs,
             subclass, scaler_and_scheduler, in_backward, compiled):
    tell(loop.__name__, loop)
"""

FRAMEWORKS = {
    "torchdata": """
from torchdata.stateful_dataloader import StatefulDataLoader

def loop():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    count = 0
    for workers in (0, 1):
        for x, y in StatefulDataLoader(DATA, batch_size=4, num_workers=workers):
            error(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            count += 1
    return count, model
""",
    "accelerate": """
from accelerate import Accelerator

def loop():
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(DATA, batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    count = 0
    for epoch in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(error(model, x, y))
                optimizer.step()
                optimizer.zero_grad()
                count += accelerator.sync_gradients
    return count, model
""",
    "lightning": """
import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()
    def training_step(self, batch, index):
        return error(self.network, *batch)
    def validation_step(self, batch, index):
        error(self.network, *batch)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

def loop():
    model = Model()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
    )
    trainer.fit(model, DataLoader(DATA, batch_size=2), DataLoader(DATA, batch_size=8))
    return trainer.global_step, model
""",
    "transformers": """
import tempfile
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()
    def forward(self, x=None, y=None, **rest):
        return {"loss": error(self.network, x, y)}

class Rows(torch.utils.data.Dataset):
    def __len__(self): return len(DATA)
    def __getitem__(self, i): return {"x": DATA[i][0], "y": DATA[i][1]}

def loop():
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=30,
            report_to=[], use_cpu=True, save_strategy="no", logging_strategy="no",
            disable_tqdm=True, remove_unused_columns=False,
        )
        trainer = Trainer(model, arguments, train_dataset=Rows())
        trainer.train()
    return trainer.state.global_step, model
""",
}


def run(folder, text, **environment):
    """Run a script as a rank; its loops by name: (count, result, first event, last event)."""
    script = folder / "train.py"
    script.write_text(textwrap.dedent(HEAD) + textwrap.dedent(text))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ
        | rank
        | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "EROICA_RUN": str(folder)}
        | {"PYTHONPATH": str(INJECT), "HF_HUB_OFFLINE": "1"}
        | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "eroica:" not in done.stderr
    lines = [line[5:] for line in done.stdout.splitlines() if line.startswith("LOOP ")]
    return {name: rest for name, *rest in map(json.loads, lines)}


def counted(folder, start, end):
    """Iterations that eroica sees in a stretch of the ring."""
    reader = RingReader(find_rings(folder)[0])
    events = reader.read_new()[start:end]
    reader.close()
    iteration = Iteration()
    iteration.add(events)
    return iteration


LOOPS = [
    "plain",
    "no_loader",
    "accumulation",
    "evaluation_between",
    "workers",
    "adversaries",
    "lbfgs",
    "subclass",
    "scaler_and_scheduler",
    "in_backward",
    "compiled",
]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The loops of torch alone: with the hook, and without."""
    folder = tmp_path_factory.mktemp("loops")
    found = folder, run(folder, PLAIN), run(folder, PLAIN, EROICA="0")
    assert set(found[1]) == set(found[2]) == set(LOOPS)
    return found


@pytest.mark.parametrize("name", LOOPS)
def test_a_loops_iterations_are_counted_and_its_result_is_its_own(both, name):
    folder, watched, plain = both
    count, result, start, end = watched[name]
    iteration = counted(folder, start, end)
    assert [count, result] == plain[name][:2]
    assert iteration.num_steps == count >= 20
    assert iteration.is_learned


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_frameworks_loop_is_counted_and_its_result_is_its_own(tmp_path, name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install 'eroica[frameworks]'")
    text = FRAMEWORKS[name] + f"\ntell({name!r}, loop)\n"
    watched, plain = run(tmp_path, text), run(tmp_path, text, EROICA="0")
    count, result, start, end = watched[name]
    iteration = counted(tmp_path, start, end)
    assert [count, result] == plain[name][:2]
    assert iteration.num_steps == count >= 20
    assert iteration.is_learned
