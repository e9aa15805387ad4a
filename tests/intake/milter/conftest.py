"""What the milter tests over real sockets share: an event loop of each kind."""

from __future__ import annotations

import asyncio

import pytest
import uvloop


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Runs one scenario to its end, on Python's own loop and on ours; an exception anywhere in it is a failure."""
    problems = []

    def run_to_the_end(scenario):
        async def watched():
            asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
            await asyncio.wait_for(scenario(), 120)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(watched())
        assert not problems

    return run_to_the_end
