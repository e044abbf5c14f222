"""The office tools: their schemas, what they answer and how that is summed up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from dspine_cluster.miniature.data.conversation import Tool
from dspine_cluster.miniature.data.office_requests import REQUESTS, VAGUE
from dspine_cluster.miniature.data.words import CITIES, SURNAMES, WEEKDAYS, first_name

Draw = Callable[[Random], Any]


@dataclass(frozen=True)
class OfficeTool:
    """One function with the language around it. Templates name the parameters and the keys of the result."""

    name: str
    description: str
    parameters: dict[str, tuple[str, Draw]]
    """JSON type and a draw of each parameter; all are required."""
    requests: tuple[str, ...]
    result: dict[str, Draw]
    summaries: tuple[str, ...]
    vague: tuple[tuple[str, str], ...]
    """Requests that leave a parameter out, and which one."""

    @property
    def definition(self) -> Tool:
        properties = {name: {"type": kind} for name, (kind, _) in self.parameters.items()}
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {"type": "object", "properties": properties, "required": list(properties)},
            },
        }

    def draw(self, rng: Random) -> dict[str, Any]:
        return {name: draw(rng) for name, (_, draw) in self.parameters.items()}

    def respond(self, rng: Random) -> dict[str, Any]:
        return {name: draw(rng) for name, draw in self.result.items()}


def _pick(*options: Any) -> Draw:
    return lambda rng: rng.choice(options)


def _whole(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low, high)


def _clock(rng: Random) -> str:
    return f"{rng.randint(8, 18):02d}:{rng.choice(('00', '15', '30', '45'))}"


def _date(rng: Random) -> str:
    return f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def _address(rng: Random) -> str:
    return f"{first_name(rng).lower()}@{rng.choice(('acme', 'office', 'mail', 'team', 'post'))}.com"


def _code(prefix: str) -> Draw:
    return lambda rng: f"{prefix}-{rng.randint(100, 999)}"


_OK: dict[str, Draw] = {"status": _pick("ok")}
_DAY = _pick(*WEEKDAYS)
_TOPIC = _pick("budget review", "team lunch", "project plan", "sales report", "weekly sync", "interview", "demo",
               "design review", "training", "kickoff", "launch", "planning", "contract", "invoice", "holiday plan",
               "road map", "press release", "yearly audit", "new logo", "travel costs")  # fmt: skip

OFFICE_TOOLS: tuple[OfficeTool, ...] = (
    OfficeTool(
        "create_event",
        "Add an event to the calendar",
        {"title": ("string", _TOPIC), "date": ("string", _date), "time": ("string", _clock)},
        REQUESTS["create_event"],
        {"event_id": _code("E")},
        ("I added {title} on {date} at {time}.", "Done: {title}, {date}, {time} (event {event_id})."),
        VAGUE["create_event"],
    ),
    OfficeTool(
        "send_email",
        "Send an email",
        {"to": ("string", _address), "subject": ("string", _TOPIC)},
        REQUESTS["send_email"],
        _OK,
        ("The email about the {subject} went to {to}.", "I sent it to {to}."),
        VAGUE["send_email"],
    ),
    OfficeTool(
        "find_contact",
        "Look up the phone number of a person",
        {"name": ("string", lambda rng: f"{first_name(rng)} {rng.choice(SURNAMES)}")},
        REQUESTS["find_contact"],
        {"phone": lambda rng: f"{rng.randint(200, 999)}-{rng.randint(1000, 9999)}"},
        ("The number of {name} is {phone}.", "You can reach {name} at {phone}."),
        VAGUE["find_contact"],
    ),
    OfficeTool(
        "set_reminder",
        "Remind the user of something",
        {"text": ("string", _pick("call the bank", "pay the bill", "water the plants", "buy milk", "send the report",
                                  "book a flight", "call mom", "check the printer", "order paper", "feed the cat",
                                  "pick up the kids", "sign the form", "back up the files")),
         "day": ("string", _DAY), "time": ("string", _clock)},
        REQUESTS["set_reminder"],
        _OK,
        ("I will remind you on {day} at {time} to {text}.", "The reminder to {text} is set for {day} at {time}."),
        VAGUE["set_reminder"],
    ),
    OfficeTool(
        "book_room",
        "Reserve a meeting room",
        {"room": ("string", _pick("Alpha", "Beta", "Gamma", "Delta", "Blue", "Green", "Garden", "Tower", "North")),
         "day": ("string", _DAY), "people": ("integer", _whole(2, 20))},
        REQUESTS["book_room"],
        {"booking": _code("R")},
        ("Room {room} is booked on {day} for {people} people.", "Your booking {booking}: room {room}, {day}."),
        VAGUE["book_room"],
    ),
    OfficeTool(
        "get_weather",
        "Weather forecast for a city",
        {"city": ("string", _pick(*CITIES)), "day": ("string", _DAY)},
        REQUESTS["get_weather"],
        {"sky": _pick("sunny", "cloudy", "rainy", "windy", "snowy", "clear"), "degrees": _whole(-5, 35)},
        ("It will be {sky} in {city} on {day}, {degrees} degrees.", "{day} in {city}: {sky}, {degrees} degrees."),
        VAGUE["get_weather"],
    ),
    OfficeTool(
        "create_task",
        "Create a task for a person",
        {"title": ("string", _TOPIC), "assignee": ("string", first_name), "due": ("string", _date)},
        REQUESTS["create_task"],
        {"task_id": _code("T")},
        ("Task {task_id} for {assignee}: {title}, due {due}.", "I gave the {title} to {assignee}, due {due}."),
        VAGUE["create_task"],
    ),
    OfficeTool(
        "search_files",
        "Search documents by words",
        {"query": ("string", _TOPIC), "limit": ("integer", _whole(1, 10))},
        REQUESTS["search_files"],
        {"found": _whole(0, 10), "first": _pick("notes.txt", "plan.pdf", "draft.doc", "final.pdf", "old.txt")},
        ("I found {found} files about {query}; the first is {first}.", "{found} results for {query}, such as {first}."),
        VAGUE["search_files"],
    ),
    OfficeTool(
        "convert_currency",
        "Convert an amount of money",
        {"amount": ("integer", _whole(5, 900)), "source": ("string", _pick("EUR", "USD", "GBP", "JPY", "CHF")),
         "target": ("string", _pick("SEK", "NOK", "PLN", "CAD", "AUD"))},
        REQUESTS["convert_currency"],
        {"value": _whole(10, 9000)},
        ("{amount} {source} are {value} {target}.", "That is {value} {target}."),
        VAGUE["convert_currency"],
    ),
)  # fmt: skip
