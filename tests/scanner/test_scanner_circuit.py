"""The circuit of a host as a table, and what its probes do."""

from __future__ import annotations

import pytest

from bridge.scanner.circuit import FAILURES_TO_OPEN, FIRST_PAUSE_S, MEMORY_S, TABLE, Circuit, Event, State

PAUSE = 5.0


def circuit_in(state: State) -> Circuit:
    circuit = Circuit(PAUSE)
    if state is not State.CLOSED:
        circuit.feed(Event.UNREACHABLE, 100.0)
    if state is State.HALF_OPEN:
        circuit.feed(Event.STATUS, 100.0)
    assert circuit.state is state
    return circuit


def test_every_state_knows_every_event() -> None:
    """The table has no holes."""
    assert set(TABLE) == {(state, event) for state in State for event in Event}


@pytest.mark.parametrize(("state", "event"), list(TABLE), ids=str)
def test_each_row_of_the_table_holds(state: State, event: Event) -> None:
    """One failure alone does not open a closed circuit; everything else follows the table."""
    circuit = circuit_in(state)
    circuit.feed(event, 100.0)
    expected = TABLE[state, event]
    assert circuit.state == (expected if isinstance(expected, State) else State.CLOSED)


def test_failures_in_a_row_open_it() -> None:
    """A success, or a long time, resets the count."""
    circuit = Circuit(PAUSE)
    for _ in range(3):
        for number in range(FAILURES_TO_OPEN - 1):
            circuit.feed(Event.FAILURE, float(number))
        circuit.feed(Event.SUCCESS, 3.0)
    assert circuit.state is State.CLOSED
    for number in range(10):
        circuit.feed(Event.FAILURE, 100.0 + number * (MEMORY_S + 1))
    assert circuit.state is State.CLOSED
    for number in range(FAILURES_TO_OPEN - 1):
        circuit.feed(Event.FAILURE, 1000.0 + number)
    circuit.feed(Event.ALIVE, 1003.0)  # a 413 tells nothing of the failures
    circuit.feed(Event.FAILURE, 1003.0)
    assert circuit.state is State.OPEN


def test_an_open_circuit_admits_one_probe_after_its_pause() -> None:
    """No mail before the pause ends, and only one probe at a time."""
    circuit = circuit_in(State.OPEN)
    assert not circuit.admits(100.0)
    assert circuit.admits(100.0 + FIRST_PAUSE_S)
    assert circuit.begin()
    assert not circuit.admits(200.0)
    circuit.release()  # its client went away: the next one may try
    assert circuit.admits(200.0)


def test_a_mail_to_a_closed_circuit_is_no_probe() -> None:
    """Any number of mails at the same time."""
    circuit = Circuit(PAUSE)
    assert not circuit.begin() and not circuit.begin() and circuit.admits(0.0)


def test_a_failed_probe_doubles_the_pause_up_to_the_longest() -> None:
    """A host that stays down is tried every few seconds."""
    circuit, now, pauses = circuit_in(State.OPEN), 100.0, []
    for _ in range(8):
        began = now
        while not circuit.admits(now):
            now += 0.25
        pauses.append(now - began)
        assert circuit.begin()
        circuit.feed(Event.UNREACHABLE, now)
        circuit.release()
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]


def test_a_good_probe_closes_it_and_the_next_pause_is_short_again() -> None:
    """The pause is reset."""
    circuit = circuit_in(State.HALF_OPEN)
    for _ in range(5):
        circuit.feed(Event.FAILURE, 100.0)
        circuit.feed(Event.STATUS, 100.0)
    assert circuit.begin()
    circuit.feed(Event.SUCCESS, 100.0)
    circuit.release()
    assert circuit.state is State.CLOSED
    circuit.feed(Event.UNREACHABLE, 200.0)
    assert circuit.admits(200.0 + FIRST_PAUSE_S)


def test_a_status_that_is_answered_ends_the_pause() -> None:
    """The host has recovered: the next mail tries it."""
    circuit = circuit_in(State.OPEN)
    circuit.feed(Event.STATUS, 100.0)
    assert circuit.admits(100.0)
