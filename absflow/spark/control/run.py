"""A started job, as its caller has it."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakValueDictionary

from pyspark.sql import SparkSession

from absflow.errors import ProcessError, StorageError
from absflow.spark.control.failures import failure_of
from absflow.spark.control.loop import JobLoop
from absflow.spark.control.progress import Progress
from absflow.spark.control.same_job import what_differs
from absflow.spark.control.shown import ShownRun, runs_cells, watch
from absflow.spark.model import JobSpec
from absflow.spark.start.decision import decide_start
from absflow.spark.start.initial_state import write_initial_state
from absflow.storage import clock
from absflow.storage.root import StorageRoot

__all__ = ["Run", "start_run"]

# Of this process, by the storage root; a loop lives as long as its thread, whoever has its run.
_loops: WeakValueDictionary[str, JobLoop] = WeakValueDictionary()


class Run:
    """A started job. Made by :meth:`absflow.Job.start`."""

    def __init__(self, loop: JobLoop) -> None:
        """Of a loop that has been started, or is about to be."""
        self._loop = loop
        self._failure_is_known = False

    @property
    def is_active(self) -> bool:
        """Whether the job runs."""
        return not self._loop.done.is_set()

    @property
    def finished_checkpoint(self) -> int | None:
        """The checkpoint that holds all input, once every (bounded) source has been read."""
        return self._loop.finished_checkpoint

    def progress(self) -> Progress:
        """How far the job is now."""
        return self._loop.progress()

    def watch(self, every_s: float = 1.0, for_s: float | None = None) -> None:
        """Show how far the job is, until it has ended.

        In a notebook one display follows the job; elsewhere a line is printed when it has changed.
        An interrupt (Ctrl-C, or the button of the notebook) ends that, and the job goes on. A
        failure of the job is shown, and raised by :meth:`await_termination`.

        Args:
            every_s: how often to look, in seconds.
            for_s: for so long at most, in seconds; None for as long as it runs.
        """
        watch(self._shown, self._loop.done, every_s, for_s)

    def _repr_html_(self) -> str:
        """As a notebook shows it: how far the job is now."""
        return self._shown().html()

    def __repr__(self) -> str:
        """How far the job is now, in a line."""
        return f"<Run: {self._shown().line()}>"

    def _shown(self) -> ShownRun:
        loop = self._loop
        failure = None if self.is_active else loop.failure
        said = "" if failure is None else str(failure).partition("\n")[0]
        ended = "failed" if failure is not None else "ended"
        state = "runs" if self.is_active else ended
        root = loop.spec.settings.storage_path
        return ShownRun(loop.job, root, state, said, loop.progress(), clock.now_ms())

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the job has ended.

        Args:
            timeout: how long to wait at most, in seconds.

        Returns:
            Whether it has ended.

        Raises:
            JobFailedError: it gave up; the message says why, and ``__cause__`` where in your code.
            FencedError: a newer driver of the job took over.
        """
        if not self._loop.done.wait(timeout):
            return False
        if self._loop.failure is not None:
            self._failure_is_known = True
            # Without the frames of the job's thread, which say nothing of the cause.
            raise self._loop.failure.with_traceback(None)
        return True

    def savepoint(self, timeout: float | None = None) -> int:
        """Take a savepoint: a full checkpoint that no retention deletes.

        Args:
            timeout: how long to wait for it, in seconds. It goes on all the same.

        Returns:
            Its id, once it has completed.

        Raises:
            SavepointFailedError: it was aborted, or the job is ending.
            TimeoutError: it has not completed yet.
        """
        return self._loop.ask().result(timeout)

    def stop(
        self, *, savepoint: bool = False, drain: bool = False, fire_timers: bool = False
    ) -> int | None:
        """Stop the queries, and wait until the job has ended.

        Does nothing if the job has failed and :meth:`await_termination` has raised that already; so
        it can stand in a ``finally``.

        Args:
            savepoint: stop with a savepoint. Else pending checkpoints are given up; the next start
                goes on where this one stopped in either case.
            drain: let no stage go on after the savepoint, so that channels and sinks hold nothing
                later than it; :attr:`unflushed` says what they hold all the same.
            fire_timers: every timer fires before the savepoint, as if every source had ended; for a
                job that ends for good (Flink's ``stop --drain``). The watermark stays where it is.

        Returns:
            The savepoint, if there is one.

        Raises:
            SavepointFailedError: the savepoint was aborted; the job runs on.
            JobFailedError: if the job had given up by itself, and nobody knows it yet.
            ValueError: drain without a savepoint, or timers without drain.
        """
        if drain and not savepoint:
            raise ValueError("drain empties what is before a savepoint; ask for a savepoint, too")
        if fire_timers and not drain:
            raise ValueError("with fire_timers nothing may come behind the savepoint; drain, too")
        if self._failure_is_known:
            return None
        taken = None
        if savepoint:
            taken = self._loop.ask(stop=True, drain=drain, fire_timers=fire_timers).result()
        else:
            self._loop.ask_to_stop()
        self.await_termination()
        return taken

    @property
    def unflushed(self) -> Mapping[str, int]:
        """After a stop with drain: the rows after the savepoint in each stage's channel."""
        return dict(self._loop.unflushed)


def start_run(spark: SparkSession, job: JobSpec) -> Run:
    """Check and prepare everything, and start a job; or find it, where cells are run again.

    Raises:
        VersionError: the workers do not have what a stage needs.
        StorageError: the storage root cannot be used, this process runs a job on it already, or
            another driver does not let go of it.
        GraphError: the graph is not the one that its state belongs to, or a sink's table is
            another one.
        RestoreError: the checkpoint cannot be restored as asked.
    """
    root = StorageRoot.open(spark, job.settings.storage_path)
    if (running := _running(root, job)) is not None:
        return running
    _begin(root, job)
    loop = JobLoop(root, job)
    _loops[root.layout.root] = loop
    loop.start()
    return Run(loop)


def _begin(root: StorageRoot, job: JobSpec) -> None:
    """Write what a new job begins with; an error of the author's handler is raised as such."""
    try:
        write_initial_state(root, job)
    except StorageError as error:
        cause = failure_of(root, str(error.__cause__)).cause
        if not isinstance(cause, ProcessError):
            raise
        raise cause from None  # the rest is Spark's account of the same


def _running(root: StorageRoot, job: JobSpec) -> Run | None:
    """The run of this very job that this process has, for a cell that is run again.

    Raises:
        StorageError: this process runs another job there, or no cells: a second driver would stop
            the first, as a newer one.
    """
    running = _loops.get(root.layout.root)
    if running is None or not running.runs:
        return None
    differ = what_differs(running.spec, job) if runs_cells() else []
    if runs_cells() and not differ:
        run = Run(running)
        print(  # it is the answer to whoever has run the cell
            f"job {running.job!r} runs already on {root.layout.root}: this is its run, which an "
            "earlier cell has started, and nothing was started now. run.stop() ends it"
        )
        return run
    decide_start(root, job)  # what would be refused anyway is said first
    what = "; what is declared now is another job:\n  " + "\n  ".join(differ) if differ else ""
    raise StorageError(
        f"this process runs a job on the storage root {root.layout.root!r} already: job "
        f"{running.job!r}, started by an earlier job.start(), as by a notebook's cell that was run "
        "before. It goes on; use the run that it gave, or stop that by run.stop() before another "
        f"start{what}"
    )
