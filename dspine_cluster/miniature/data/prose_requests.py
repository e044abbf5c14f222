"""How users ask for prose; the index in its list decides whether training may see a phrasing."""

from __future__ import annotations

ASK_STORY = (
    "Write a short story about {who} who wants to {w}.", "Tell me a story about {who}.",
    "Please tell a short tale: {who} wants to {w}.", "I would like a bedtime story with {who}.",
    "Make up a little story about {who} trying to {w}.",
    "Can you write a story in which {who} tries to {w}?", "A story about {who}, please.",
    "Story time! It should be about {who} who hopes to {w}.",
    "Write a few sentences about {who} and the wish to {w}.", "Invent a story with {who} for my child.",
    "In this story {who} wants to {w}. Please write it.", "Once {who} wanted to {w}. What happened?",
    "Write about {who}, who dreams of one thing: to {w}.", "{who_c} wants to {w}. Tell me how it goes.",
    "Tell a story in which {who} has to {w}.", "My daughter wants to hear about {who} who tries to {w}.",
    "To {w} is the dream of {who}. Write the story.",
    "Can I have a short story? It is about {who} who would like to {w}.",
    "I need a story: {who} sets out to {w}.", "Please write a tale about {who} who hopes to {w}.",
    "Think of {who} who must {w} and write a short story.", "What if {who} wants to {w}? Tell the story.",
    "Could you tell us about {who} who will try to {w}?", "A short story, please: {who} would love to {w}.",
    "How does {who} manage to {w}? Tell me a story.",
)  # fmt: skip

ASK_DEFINITION = (
    "What is {t}?", "Define {t}.", "Can you explain what {t} is?", "Tell me about {t}.",
    "What do people mean by {t}?", "Please describe {t} in a few words.",
    "Give me a short definition of {t}.", "Do you know what {t} is?",
    "I do not know what {t} is. Can you help?", "Explain {t} to a child.", "What does the word {w} mean?",
    "Short answer please: what is {t}?", "{w}: what does it mean?", "How would you describe {t}?",
    "Say in simple words what {t} is.", "I read the word {w}. What does it mean?", "What exactly is {t}?",
    "I want to know what {t} is.", "The word is {w}. Please define it.",
    "Can you tell me something about {t}?",
)  # fmt: skip

ASK_WHY = (
    "{q}", "{q} Please explain.", "Explain briefly: {q}", "My son asks: {q}", "I always wondered: {q}",
    "Could you tell me the reason? {q}", "{q} Answer in a few steps.",
    "Can you help me with this question? {q}", "I have a question. {q}", "{q} Tell me in simple words.",
    "Please tell me: {q}", "Do you know the answer? {q}", "{q} I would like to know.",
    "Explain in steps: {q}", "A child wants to know: {q}", "{q} Explain it to a child.",
    "Answer this question: {q}", "{q} Do you know?", "My teacher asked: {q}", "In short: {q}",
)  # fmt: skip

ASK_NOTE = (
    "Write a short note to {n} about the {t} on {d}.", "Please draft a message for {n}: the {t} is on {d}.",
    "I need two sentences to tell {n} that the {t} moves to {d}.",
    "Tell {n} in a friendly note that the {t} takes place on {d}.",
    "Draft a line to {n}. The {t} will be on {d}.",
    "On {d} there is the {t}. Please write a note about it to {n}.",
    "Can you write to {n} that the {t} is on {d}?", "{n} should know that the {t} is on {d}. Write a note.",
    "The {t} is on {d}. Let {n} know in a short message.", "Send {n} a few words about the {t} on {d}.",
    "Could you tell {n} about the {t} on {d}?",
    "I have to tell {n} about the {t}. It is on {d}. Write it for me.", "Write {n} a message: {t} on {d}.",
    "{d} is the day of the {t}. Please write that to {n}.", "Please remind {n} of the {t} on {d}.",
    "Help me write to {n}. The {t} takes place on {d}.",
    "A short message to {n}, please: the {t} will be on {d}.",
    "For {n} I need a note that says the {t} is on {d}.",
    "Make a short note for {n}. It should say that the {t} is on {d}.",
    "When is the {t}? On {d}. Write that in a note to {n}.",
)  # fmt: skip
