from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from dspine_serve.patient_send import PatientSend

MESSAGE: Message = {"type": "http.response.body", "body": b"x"}


async def never(_: Message) -> None:
    await asyncio.Event().wait()


async def test_a_client_that_reads_gets_every_message_however_long_all_take() -> None:
    sent: list[Message] = []

    async def slowly(message: Message) -> None:
        await asyncio.sleep(0.002)
        sent.append(message)

    with PatientSend(slowly, timeout_s=60.0) as send:
        for _ in range(5):
            await send(MESSAGE)
    assert sent == [MESSAGE] * 5


async def test_time_between_messages_does_not_count() -> None:
    async def at_once(_: Message) -> None:
        pass

    with PatientSend(at_once, timeout_s=0.01) as send:
        await send(MESSAGE)
        await asyncio.sleep(0.05)
        await send(MESSAGE)


async def test_a_client_that_does_not_read_is_given_up_and_the_task_goes_on() -> None:
    with PatientSend(never, timeout_s=0.01) as send, pytest.raises(TimeoutError):
        await send(MESSAGE)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_task_that_is_cancelled_meanwhile_is_cancelled() -> None:
    started = asyncio.Event()

    async def run() -> None:
        with PatientSend(never, timeout_s=60.0) as send:
            started.set()
            await send(MESSAGE)

    task = asyncio.create_task(run())
    await started.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
