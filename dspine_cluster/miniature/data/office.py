"""The office tools: their schemas, how people ask for them, what they answer and how that is summed up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from dspine_cluster.miniature.data.conversation import Tool
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
    vague: tuple[tuple[str, str], ...] = ()
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
        (
            "Put {title} in my calendar on {date} at {time}.",
            "Schedule a {title} for {date}, {time}.",
            "Please add an event called {title} at {time} on {date}.",
            "On {date} at {time} we have the {title}. Add it.",
            "Can you create a {title} event on {date} at {time}?",
            "Book {time} on {date} for the {title}.",
        ),
        {"event_id": _code("E")},
        ("I added {title} on {date} at {time}.", "Done: {title}, {date}, {time} (event {event_id})."),
        (("Schedule a {title} on {date}.", "time"), ("Add the {title} at {time}.", "date")),
    ),
    OfficeTool(
        "send_email",
        "Send an email",
        {"to": ("string", _address), "subject": ("string", _TOPIC)},
        (
            "Send an email to {to} about the {subject}.",
            "Write to {to} with the subject {subject}.",
            "Email {to}: {subject}.",
            "Please mail the {subject} to {to}.",
            "Can you send {to} a note about the {subject}?",
            "{to} needs an email on the {subject}.",
        ),
        _OK,
        ("The email about the {subject} went to {to}.", "I sent it to {to}."),
        (("Send an email about the {subject}.", "to"), ("Write an email to {to}.", "subject")),
    ),
    OfficeTool(
        "find_contact",
        "Look up the phone number of a person",
        {"name": ("string", lambda rng: f"{first_name(rng)} {rng.choice(SURNAMES)}")},
        (
            "What is the phone number of {name}?",
            "Find {name} in my contacts.",
            "I want to call {name}. Which number?",
            "Look up {name}, please.",
            "Do we have a number for {name}?",
            "How can I reach {name} by phone?",
        ),
        {"phone": lambda rng: f"{rng.randint(200, 999)}-{rng.randint(1000, 9999)}"},
        ("The number of {name} is {phone}.", "You can reach {name} at {phone}."),
    ),
    OfficeTool(
        "set_reminder",
        "Remind the user of something",
        {"text": ("string", _pick("call the bank", "pay the bill", "water the plants", "buy milk", "send the report",
                                  "book a flight", "call mom", "check the printer", "order paper", "feed the cat",
                                  "pick up the kids", "sign the form", "back up the files")),
         "day": ("string", _DAY), "time": ("string", _clock)},
        (
            "Remind me to {text} on {day} at {time}.",
            "Set a reminder for {day}, {time}: {text}.",
            "I must not forget to {text} on {day} at {time}.",
            "On {day} at {time} tell me to {text}.",
            "Could you remind me at {time} on {day} to {text}?",
            "Reminder please: {text}, {day}, {time}.",
        ),
        _OK,
        ("I will remind you on {day} at {time} to {text}.", "The reminder to {text} is set for {day} at {time}."),
        (("Remind me to {text} on {day}.", "time"), ("Remind me to {text} at {time}.", "day")),
    ),
    OfficeTool(
        "book_room",
        "Reserve a meeting room",
        {"room": ("string", _pick("Alpha", "Beta", "Gamma", "Delta", "Blue", "Green", "Garden", "Tower", "North")),
         "day": ("string", _DAY), "people": ("integer", _whole(2, 20))},
        (
            "Book room {room} on {day} for {people} people.",
            "We are {people} people and need room {room} on {day}.",
            "Reserve {room} for {people} on {day}.",
            "Please get us the {room} room, {day}, {people} persons.",
            "Is room {room} free on {day}? Book it for {people} people.",
            "On {day} {people} of us meet in {room}. Reserve it.",
        ),
        {"booking": _code("R")},
        ("Room {room} is booked on {day} for {people} people.", "Your booking {booking}: room {room}, {day}."),
        (("Book room {room} for {people} people.", "day"), ("Book a room on {day} for {people} people.", "room")),
    ),
    OfficeTool(
        "get_weather",
        "Weather forecast for a city",
        {"city": ("string", _pick(*CITIES)), "day": ("string", _DAY)},
        (
            "What is the weather in {city} on {day}?",
            "Will it rain in {city} on {day}?",
            "Weather for {city}, {day}?",
            "I travel to {city} on {day}. How will the weather be?",
            "Give me the forecast for {city} on {day}.",
            "Do I need a coat in {city} on {day}?",
        ),
        {"sky": _pick("sunny", "cloudy", "rainy", "windy", "snowy", "clear"), "degrees": _whole(-5, 35)},
        ("It will be {sky} in {city} on {day}, {degrees} degrees.", "{day} in {city}: {sky}, {degrees} degrees."),
        (("What will the weather be on {day}?", "city"),),
    ),
    OfficeTool(
        "create_task",
        "Create a task for a person",
        {"title": ("string", _TOPIC), "assignee": ("string", first_name), "due": ("string", _date)},
        (
            "Create a task {title} for {assignee}, due {due}.",
            "{assignee} should finish the {title} by {due}. Make a task.",
            "Give {assignee} the task {title} until {due}.",
            "Add a task for {assignee}: {title}, due on {due}.",
            "Please assign the {title} to {assignee} with the due date {due}.",
            "By {due} {assignee} has to do the {title}. Track that.",
        ),
        {"task_id": _code("T")},
        ("Task {task_id} for {assignee}: {title}, due {due}.", "I gave the {title} to {assignee}, due {due}."),
        (("Create a task {title}, due {due}.", "assignee"), ("Make a task {title} for {assignee}.", "due")),
    ),
    OfficeTool(
        "search_files",
        "Search documents by words",
        {"query": ("string", _TOPIC), "limit": ("integer", _whole(1, 10))},
        (
            "Find {limit} files about the {query}.",
            "Search my documents for {query}, at most {limit}.",
            "Where are the files on the {query}? Show {limit}.",
            "Show me up to {limit} documents with {query}.",
            "Look for {query} in the files, {limit} results.",
            "I need {limit} documents that mention the {query}.",
        ),
        {"found": _whole(0, 10), "first": _pick("notes.txt", "plan.pdf", "draft.doc", "final.pdf", "old.txt")},
        ("I found {found} files about {query}; the first is {first}.", "{found} results for {query}, such as {first}."),
    ),
    OfficeTool(
        "convert_currency",
        "Convert an amount of money",
        {"amount": ("integer", _whole(5, 900)), "source": ("string", _pick("EUR", "USD", "GBP", "JPY", "CHF")),
         "target": ("string", _pick("SEK", "NOK", "PLN", "CAD", "AUD"))},
        (
            "How much is {amount} {source} in {target}?",
            "Convert {amount} {source} to {target}.",
            "I have {amount} {source}. What is that in {target}?",
            "Change {amount} {source} into {target}, please.",
            "{amount} {source} are how many {target}?",
        ),
        {"value": _whole(10, 9000)},
        ("{amount} {source} are {value} {target}.", "That is {value} {target}."),
        (("Convert {amount} {source}.", "target"),),
    ),
)  # fmt: skip

SMALL_REQUESTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Hello!", ("Hello! What can I do for you?", "Hi! How can I help?")),
    ("What can you do?", ("I can use the tools I was given, for example to look things up for you.",)),
    ("Who are you?", ("I am a small office assistant.",)),
    ("How are you today?", ("I am fine, thank you. How can I help?",)),
    ("Good morning.", ("Good morning! What can I do for you?", "Good morning! How can I help?")),
    ("Never mind.", ("No problem. Just ask if you need anything.",)),
    ("Are you there?", ("Yes, I am here. What do you need?",)),
    ("Wait a moment.", ("Of course, take your time.",)),
    ("I changed my mind.", ("No problem. What would you like instead?",)),
    ("Hi there.", ("Hello! What can I do for you?", "Hi! How can I help?")),
)
