from __future__ import annotations

import time

import numpy as np

from dspine_cluster.bench.stopwatch import Rounds, Stopwatch


def test_sampling_does_not_count_the_models_beneath_it() -> None:
    watch = Stopwatch()
    with watch.in_sampling():
        time.sleep(0.01)
        with watch.in_model():
            time.sleep(0.2)
    spent = watch.take()
    assert 0.01 <= spent.sampling[1] < 0.2 <= spent.model[1]
    assert not np.any(watch.take())


def test_a_round_is_the_sum_of_its_steps_without_models_and_sampling() -> None:
    watch = Stopwatch()
    rounds = Rounds(watch)
    for _ in range(2):
        with rounds:
            time.sleep(0.01)
            with watch.in_model():
                time.sleep(0.2)
    time.sleep(0.2)
    rounds.end()
    (only,) = rounds.done
    assert 0.02 <= only.host[1] < 0.2
    assert not only.sampling.any()


def test_rounds_that_do_not_count_leave_nothing_behind() -> None:
    rounds = Rounds(Stopwatch())
    with rounds:
        time.sleep(0.2)
    rounds.end(counts=False)
    with rounds:
        pass
    rounds.end()
    (only,) = rounds.done
    assert only.host[1] < 0.2


def test_the_clock_moves_with_passes_alone() -> None:
    watch = Stopwatch()
    before = watch.clock()
    time.sleep(0.001)
    assert watch.clock() == before
    watch.note_pass(100)
    assert watch.clock() > before


def test_of_waiting_the_cpu_time_counts_alone() -> None:
    rounds = Rounds(Stopwatch())
    with rounds.waiting:
        time.sleep(0.2)
        start_s = time.thread_time()
        while time.thread_time() - start_s < 0.02:
            pass
    rounds.end()
    (only,) = rounds.done
    assert 0.02 <= only.host[0] == only.host[1] < 0.2
