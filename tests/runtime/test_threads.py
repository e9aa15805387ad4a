"""Our own threads: all work is done, by few threads, also in a process that was forked."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from bridge.runtime.threads import Executor, Threads, finish_in_thread, use_daemon_threads
from bridge.testing import eventually


async def test_all_work_is_done_by_few_threads() -> None:
    threads = Threads("test few", 3)
    names: set[int] = set()

    def work(number: int) -> int:
        names.add(threading.get_ident())
        return number

    found = await asyncio.gather(*[threads.run(lambda number=number: work(number)) for number in range(200)])  # type: ignore[misc]
    assert found == list(range(200)) and len(names) <= 3


async def test_an_idle_thread_is_used_again() -> None:
    threads = Threads("test again", 3)
    used = set()
    for _ in range(20):
        used.add(await threads.run(threading.get_ident))
        await eventually(lambda: threads._idle._value > 0, "the thread to be idle")
    assert len(used) == 1


async def test_an_error_reaches_the_caller_and_the_thread_continues() -> None:
    threads = Threads("test error", 1)

    def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await threads.run(fail)
    assert await threads.run(lambda: "next") == "next"


async def test_cancelled_work_that_waits_is_not_done() -> None:
    threads, busy, done = Threads("test cancel", 1), threading.Event(), []
    first = threads.run(lambda: busy.wait(60))
    second = threads.run(lambda: done.append("never"))
    second.cancel()
    await asyncio.sleep(0)  # the pool is told by a callback
    busy.set()
    assert await first and await threads.run(lambda: "last") == "last"
    assert done == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_waited_for_the_threads_of_its_parent() -> None:
    threads = Threads("test fork", 1)

    async def run() -> str:
        return await asyncio.wait_for(threads.run(lambda: "done"), 30)

    assert asyncio.run(run()) == "done"
    child = os.fork()
    if child == 0:
        os._exit(0 if asyncio.run(run()) == "done" else 1)
    assert os.waitpid(child, 0)[1] == 0


async def test_an_executor_runs_its_work_in_order() -> None:
    executor, done = Executor("test order", 1), []
    for number in range(50):
        executor.submit(done.append, number)
    await asyncio.get_running_loop().run_in_executor(executor, done.append, 50)
    assert done == list(range(51))
    executor.shutdown()


async def test_an_executor_that_was_shut_down_left_its_threads() -> None:
    """The work before is still done."""
    executor, name = Executor("test shut down", 2), "test shut down"
    running = [executor.submit(threading.get_ident) for _ in range(4)]
    executor.shutdown()
    assert len([work.result(60) for work in running]) == 4
    await eventually(lambda: name not in {thread.name for thread in threading.enumerate()}, "the threads to end")


async def test_the_event_loop_uses_our_threads() -> None:
    use_daemon_threads()
    assert await asyncio.to_thread(lambda: threading.current_thread().daemon)


async def test_a_second_interruption_left_a_thread_at_work_without_its_caller() -> None:
    """asyncio then cancels every task; the caller released its lock while the thread was still writing."""
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        may_end.wait(60)
        ended.set()

    others = asyncio.all_tasks()
    caller = asyncio.create_task(finish_in_thread(write))
    await eventually(begun.is_set, "the work to begin")
    for _ in range(2):
        for task in asyncio.all_tasks() - others:
            task.cancel()
        await asyncio.sleep(0)
    assert not caller.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()
