"""Trainer: takes one job from its files to a registered adapter.

On a CPU the adapter depends on the base, the files, the hyperparameters, the seed and the number of threads alone: a
run that was killed and continued ends in the same bytes.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from quicksilver.accounts.stored_files import FILE, read_pieces
from quicksilver.accounts.training_charges import TrainingCharges
from quicksilver.errors import InvalidRequest, QuicksilverError, Unavailable
from quicksilver.hub.files import ModelFiles
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.corpus import OverlapCheck, evaluation_texts
from quicksilver.training.formats import Formatter
from quicksilver.training.loop import Loop
from quicksilver.training.network import Network
from quicksilver.training.recipe import Optim
from quicksilver.training.service import canvas_refresh
from quicksilver.training.service.base_network import files_of, load_network
from quicksilver.training.service.charging import StepCharges
from quicksilver.training.service.examples import read_examples
from quicksilver.training.service.faults import DataRefused
from quicksilver.training.service.job_data import JobData, JobJournal, Scalars, Watch
from quicksilver.training.service.lease import Interrupted, Lease, Signals
from quicksilver.training.service.measure import TOKENS_PER_ROUND, losses
from quicksilver.training.service.results import Measured, Results
from quicksilver.training.service.tasks import JobTask, StepPlan, make_task
from quicksilver.training.service.time_left import Tell, TimeLeft
from quicksilver.tuning.hyperparameters import LEARNING_RATE, resolved
from quicksilver.tuning.jobs import ATTEMPTS, ENDED, LAST_EPOCH, PROPOSAL, REFRESH_TOKENS, JobStore, TuningJob
from quicksilver.tuning.models import delete_results
from quicksilver.tuning.settings import TrainerSettings
from quicksilver.tuning.sweep import JOBS

log = logging.getLogger("quicksilver.training")

# Reports of one job, about.
NUM_REPORTS = 100
# Validation examples that are measured after an epoch before the last.
NUM_VALIDATED = 64
# Checkpoints that are kept as models: those of the last epochs.
NUM_CHECKPOINTS = 3
WARMUP_SHARE = 0.05
# Between two updates of the progress in the job itself; events have every report.
PROGRESS_S = 1.0
# Times that a job is begun without a checkpoint after it. Its trainer was killed each time, so a further one would be.
MAX_ATTEMPTS = 3


class Trainer:
    """Works on one job at a time, in the calling thread."""

    def __init__(
        self,
        jobs: JobStore,
        settings: TrainerSettings,
        process: str,
        charges: TrainingCharges | None = None,
        signals: Signals | None = None,
        watch: Watch = lambda job, step, num_steps, scalars: None,
        tell: Tell = lambda text, seconds_left: None,
    ) -> None:
        self._jobs, self._settings, self._process = jobs, settings, process
        self._charges, self._signals, self._watch, self._tell = charges, signals, watch, tell
        # Jobs that were interrupted because the store did not answer; beginning them again is no further attempt.
        self._without_store: set[str] = set()

    def run(self, job: TuningJob) -> None:
        """Works on a job whose lease this process holds, to its end or until it is interrupted. Raises Unavailable if
        the store does not answer."""
        try:
            with Lease(self._jobs, job, self._process, self._signals) as lease:
                JobRun(self, job, lease).run()
        except Interrupted as interrupted:
            if interrupted.is_held:
                self._jobs.release(job, self._process)
            else:
                self._drop_results(job)
            log.info("job %s is interrupted", job.id)
        except DataRefused as refused:
            for fault in refused.faults:
                self._jobs.event(job, str(fault), "error", fault.as_json())
            self._fail(job, refused)
        except Unavailable:
            # The store does not answer. The job and its folder stay, and it is continued when the store answers again.
            self._without_store.add(job.id)
            raise
        except QuicksilverError as error:
            self._fail(job, error)
        except Exception as error:
            log.exception("job %s failed", job.id)
            self._fail(job, QuicksilverError(f"training failed: {type(error).__name__}", code="training_failed"))
        self._drop_folder(job)

    def _drop_results(self, job: TuningJob) -> None:
        """A job that was paused or cancelled while its model was registered has none. Another process that has taken
        the job over registers the model itself."""
        now = self._jobs.get(job.owner, job.id)
        if now is not None and now.status in ("paused", "cancelled"):
            delete_results(self._jobs.objects, now)

    def _drop_folder(self, job: TuningJob) -> None:
        """Removes the checkpoint of a job that has ended."""
        now = self._jobs.get(job.owner, job.id)
        if now is None or now.status in ENDED:
            shutil.rmtree(self._settings.home / JOBS / job.id, ignore_errors=True)

    def _fail(self, job: TuningJob, error: QuicksilverError) -> None:
        told = {"code": error.code, "message": error.message, "param": error.param}
        now = self._jobs.get(job.owner, job.id) or job
        changes = {"status": "failed", "error": told, "finished_at": int(time.time()), "estimated_finish": None}
        if self._jobs.save(now, self._process, is_open=False, **changes) is not None:
            self._jobs.event(job, f"The job failed: {error.message}", "error")
            delete_results(self._jobs.objects, now)

    @cached_property
    def overlap(self) -> OverlapCheck:
        evals = self._settings.evals
        return OverlapCheck(evaluation_texts(evals) if evals is not None else ())


class JobRun:
    """State of one running job."""

    def __init__(self, trainer: Trainer, job: TuningJob, lease: Lease) -> None:
        self._trainer, self._lease = trainer, lease
        self._jobs, self._settings, self._process = trainer._jobs, trainer._settings, trainer._process
        self.job = job
        self._saved_at, self._told_at = time.monotonic(), 0.0
        # Loss and accuracy after the last epoch, if this run trained it.
        self._valid_losses: tuple[float, float] | None = None

    @property
    def files(self) -> ModelFiles:
        return files_of(self._settings, str(self.job.reply["model"]))

    def run(self) -> None:
        self._begin()
        if self.job.method == "import":
            results = Results(self._jobs, self.job, self._settings, self._network(), self.files)
            self.finish(results, results.imported(self.read_file("training_file")), 0)
            return
        data = self._read_data()
        self._lease.hold()
        network = self._network()
        results = Results(self._jobs, self.job, self._settings, network, self.files)
        results.check_room(int(data.chosen["rank"]))
        task = make_task(self.job.method, network, data.train, data.plan, data.chosen)
        self._time = TimeLeft(self._trainer._tell, data.work, network)
        self._measure_before(results, task, data)
        self._save(status="running")
        tensors = self._train(task, data, results)
        self._time.at("after", "measuring the tuned model")
        after = results.measured(task, data.validation, tensors, self._valid_losses)
        num_tokens = self._refresh(results, task, data, after)
        self.finish(results, tensors, data.epoch_tokens * data.plan.num_epochs + num_tokens, after)

    def _begin(self) -> None:
        """Counts the attempt. The number of threads decides the order of sums, so a continued run must have that of its
        first start."""
        known = self.job.facts
        attempts = int(known.get(ATTEMPTS, 0)) + (self.job.id not in self._trainer._without_store)
        self._trainer._without_store.discard(self.job.id)
        if attempts > MAX_ATTEMPTS:
            raise QuicksilverError(
                f"the trainer was lost {MAX_ATTEMPTS} times without progress, which happens when memory runs out; "
                "use shorter examples or a lower rank",
                code="trainer_lost",
            )
        threads = int(known.get("threads") or self._settings.threads or max(1, (os.cpu_count() or 2) // 2))
        torch.set_num_threads(threads)
        self._save(facts={**known, "threads": threads, ATTEMPTS: attempts})

    def _keep(self, loop: Loop) -> None:
        """Writes a checkpoint, after which the attempts count from zero."""
        loop.save()
        if self.job.facts[ATTEMPTS]:
            self._save(facts={**self.job.facts, ATTEMPTS: 0})

    def _save(self, **changes: Any) -> None:
        """Raises Interrupted if the lease is lost."""
        saved = self._jobs.save(self.job, self._process, **changes)
        if saved is None:
            raise Interrupted(is_held=False)
        self.job = saved

    def read_file(self, param: str) -> bytes:
        file_id = str(self.job.reply[param])
        if self._jobs.objects.get(self.job.owner, FILE, file_id) is None:
            raise InvalidRequest(f"{param}: the file was deleted", param=param, code="file_not_found")
        return b"".join(read_pieces(self._jobs.objects, self.job.owner, file_id))

    def _read_data(self) -> JobData:
        """Validates the files and resolves the hyperparameters. The same for every run of the job."""
        formatter = Formatter(self.tokenizer, self._settings.max_example_len)
        method, check = self.job.method, self._trainer.overlap
        train = read_examples(self.read_file("training_file"), method, formatter, check, "training_file")
        validation = []
        if self.job.reply["validation_file"]:
            content = self.read_file("validation_file")
            validation = read_examples(content, method, formatter, check, "validation_file", min_examples=1)
        given = self.job.reply["method"].get(method, {}).get("hyperparameters", {})
        chosen = resolved(method, given, len(train))
        plan = StepPlan(len(train), chosen["batch_size"], chosen["n_epochs"], int(self.job.reply["seed"]))
        data = JobData(train, validation, plan, chosen, method)
        self._steps = StepCharges(self._jobs, self._trainer._charges, self.job, data.tokens_of_steps, plan.num_steps)
        self._steps.check_balance()
        if self.job.status == "validating_files":
            described = {"type": method, method: {"hyperparameters": chosen}}
            self._save(status="queued", hyperparameters=chosen, method=described)
            tokens = f"{data.epoch_tokens} tokens in an epoch"
            self._jobs.event(self.job, f"Validated {len(train)} examples, {tokens}.", event_id="validated")
        return data

    @property
    def _folder(self) -> Path:
        return self._settings.home / JOBS / self.job.id

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.for_model(self.files.weights, self.files.skill)

    def _network(self) -> Network:
        return load_network(self._settings, str(self.job.reply["model"]))

    def _measure_before(self, results: Results, task: JobTask, data: JobData) -> None:
        if "before" not in self.job.facts:
            self._time.at("before", "measuring the model before training")
            before = results.measured(task, data.validation, None)
            self._save(facts={**self.job.facts, "before": before}, quicksilver={"before": before})

    def _train(self, task: JobTask, data: JobData, results: Results) -> dict[str, torch.Tensor]:
        plan = data.plan
        optim = Optim(
            lr=LEARNING_RATE[self.job.method] * float(data.chosen["learning_rate_multiplier"]),
            warmup_steps=max(1, round(WARMUP_SHARE * plan.num_steps)),
            max_steps=plan.num_steps,
            log_every=max(1, plan.num_steps // NUM_REPORTS),
            seed=plan.seed,
        )
        last: dict[str, float] = {}

        def report(step: int, scalars: Scalars) -> None:
            last.update(scalars)
            self._report(step, plan, scalars)

        def after_step(loop: Loop) -> None:
            if loop.step_number % plan.steps_per_epoch == 0:
                self._end_epoch(loop, task, data, results, last)
                self._keep(loop)
            self._pause_point(loop)

        loop = Loop(task, optim, self._folder, JobJournal(report), after_step)
        return self._run_loop(loop, self._steps.charge_until)

    def _refresh(self, results: Results, task: JobTask, data: JobData, after: Measured) -> int:
        """Refreshes the canvas adapter if drafts are accepted less often than before training; the tokens that were
        trained for it. `after` then has the figures with the refresh."""
        if results.canvas is None or not canvas_refresh.is_needed(self.job.facts["before"], after):
            return 0
        documents = [example.document for example in data.train if example.label]
        self._time.add(canvas_refresh.WORK)
        self._time.at("answers", "canvas refresh, answering prompts")
        if not (answers := canvas_refresh.own_answers(task.network, documents, results.stop_ids, self._lease.hold)):
            return 0
        refresh = canvas_refresh.refresh_task(task.network, results.canvas, answers, data.plan.seed)
        num_steps = refresh.spec.optim.max_steps
        self._steps.refresh_tokens = canvas_refresh.tokens_per_step(refresh, answers)
        self._save(facts={**self.job.facts, REFRESH_TOKENS: self._steps.refresh_tokens})
        try:
            self._steps.check_refresh(num_steps)
        except Unavailable:
            raise
        except QuicksilverError as error:
            self._jobs.event(self.job, f"The canvas adapter is not refreshed: {error.message}", "warn")
            return 0
        added = self._train_refresh(refresh)
        rates = results.draft_rates(task, data.validation, added)
        old, new = after[TOKENS_PER_ROUND], round(rates[TOKENS_PER_ROUND], 5)
        num_tokens = self._steps.refresh_tokens * num_steps
        described: dict[str, Any] = {"trained_tokens": num_tokens, "before": old, "after": new, "is_served": new > old}
        if described["is_served"]:
            results.on_canvas = added
            after[TOKENS_PER_ROUND] = new
        self._save(quicksilver={**self.job.reply["quicksilver"], "canvas_refresh": described})
        state = "" if described["is_served"] else "; the refresh is left out"
        message = f"Refreshed the canvas adapter: {old:.2f} -> {new:.2f} tokens per draft round{state}."
        self._jobs.event(self.job, message, data=described, event_id="canvas-refreshed")
        return num_tokens

    def _train_refresh(self, refresh: canvas_refresh.RefreshTask) -> dict[str, torch.Tensor]:
        num_steps = refresh.spec.optim.max_steps

        def report(step: int, scalars: Scalars) -> None:
            message = f"Canvas refresh, step {step}/{num_steps}: loss {scalars['loss']:.4f}"
            self._jobs.event(self.job, message, event_id=f"canvas-step-{step}")
            self._trainer._watch(self.job, step, num_steps, scalars)
            self._time.at_step("refresh", "canvas refresh, ", step, num_steps, scalars)

        loop = Loop(refresh, refresh.spec.optim, self._folder / "canvas", JobJournal(report), self._pause_point)
        return self._run_loop(loop, self._steps.charge_refresh_until)

    def _run_loop(self, loop: Loop, charge_until: Callable[[int], None]) -> dict[str, torch.Tensor]:
        """Steps that an interruption leaves behind are charged."""
        try:
            tensors = loop.run()
        except Interrupted:
            charge_until(loop.step_number)
            raise
        charge_until(loop.step_number)
        return {name: tensor.detach() for name, tensor in tensors.items()}

    def _pause_point(self, loop: Loop) -> None:
        if time.monotonic() - self._saved_at >= self._settings.checkpoint_s:
            self._keep(loop)
            self._saved_at = time.monotonic()
        try:
            self._lease.hold()
        except Interrupted:
            loop.save()
            raise

    def _report(self, step: int, plan: StepPlan, scalars: Scalars) -> None:
        data = {
            "step": step,
            "total_steps": plan.num_steps,
            "train_loss": round(scalars["loss"], 5),
            "train_mean_token_accuracy": round(scalars["accuracy"], 5),
            "learning_rate": scalars["lr"],
        }
        message = f"Step {step}/{plan.num_steps}: training loss {scalars['loss']:.4f}"
        self._jobs.event(self.job, message, data=data, event_id=f"step-{step}")
        self._trainer._watch(self.job, step, plan.num_steps, scalars)
        self._time.at_step("train", "", step, plan.num_steps, scalars)
        if time.monotonic() - self._told_at < PROGRESS_S and step < plan.num_steps:
            return
        self._told_at = time.monotonic()
        progress = {**self.job.reply["quicksilver"], "step": step, "total_steps": plan.num_steps}
        # A lost lease is noticed after the step, where the state is saved.
        finish = int(time.time() + scalars["eta_s"])
        self.job = self._jobs.save(self.job, self._process, estimated_finish=finish, quicksilver=progress) or self.job

    def _end_epoch(self, loop: Loop, task: JobTask, data: JobData, results: Results, last: Scalars) -> None:
        """Charges the epoch, measures it, and stores a checkpoint of each of the last epochs."""
        plan, step = data.plan, loop.step_number
        epoch = step // plan.steps_per_epoch
        self._steps.charge_until(step)
        metrics = {"train_loss": last.get("loss"), "train_mean_token_accuracy": last.get("accuracy")}
        is_last = step == plan.num_steps
        if documents := results.validated(data.validation)[: None if is_last else NUM_VALIDATED]:
            loss, accuracy = losses(task, documents, task.parameters)
            self._valid_losses = (loss, accuracy) if is_last else None
            metrics |= {"valid_loss": round(loss, 5), "valid_mean_token_accuracy": round(accuracy, 5)}
        message = f"Epoch {epoch}/{plan.num_epochs} is complete."
        self._jobs.event(self.job, message, data={"step": step, **metrics}, event_id=f"epoch-{epoch}")
        if is_last:
            # Its model is that of the job, which `finish` stores once, with what follows from a canvas refresh.
            self._save(facts={**self.job.facts, LAST_EPOCH: {"step": step, "metrics": metrics}})
        # The checkpoints of a proposal are not served.
        elif epoch > plan.num_epochs - NUM_CHECKPOINTS and not self.job.facts.get(PROPOSAL):
            self._save()
            self._jobs.checkpoint(self.job, step, metrics, results.register(loop.result, step))

    def finish(
        self, results: Results, tensors: dict[str, torch.Tensor], num_tokens: int, after: Measured | None = None
    ) -> None:
        # A process that has lost the lease must not write over what another one registers.
        self._save()
        is_proposal = bool(self.job.facts.get(PROPOSAL))
        name = results.register(tensors, is_proposed=is_proposal)
        if LAST_EPOCH in self.job.facts and not is_proposal:
            self._jobs.checkpoint(self.job, model=name, **self.job.facts[LAST_EPOCH])
        files = results.write_files(tensors)
        extra = {**self.job.reply["quicksilver"], "after": after or {}, "adapter_sha256": results.sha256}
        self._save(
            is_open=False,
            status="proposed" if is_proposal else "succeeded",
            fine_tuned_model=None if is_proposal else name,
            finished_at=int(time.time()),
            estimated_finish=None,
            trained_tokens=num_tokens,
            result_files=files,
            quicksilver=extra,
        )
        state = "proposed; it is served after it was accepted" if is_proposal else "ready"
        self._jobs.event(self.job, f"The model {name} is {state}.", event_id="ready")
