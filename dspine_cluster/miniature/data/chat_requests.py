"""What users say in small talk; the index in its list decides whether training may see a phrasing."""

from __future__ import annotations

GREETINGS = (
    "Hello!", "Hi!", "Good morning!", "Hey there!", "Good evening!", "Hi, how are you?",
    "Hello, how is it going?", "Good afternoon!", "Hey!", "Hello there, nice to meet you!", "Good day!",
    "Hello again!", "Hi there!", "Hey, how are you today?", "Hi, good to see you.", "Hello, are you there?",
    "Hello, how are you doing?", "A good morning to you!", "Hi, can we talk?", "Good evening, how are you?",
)  # fmt: skip

INTRODUCTIONS = (
    "My name is {n} and I live in {c}.", "I am {n} from {c}.", "Hi, {n} here, writing from {c}.",
    "You can call me {n}. My home is {c}.", "Let me introduce myself: {n}, from {c}.",
    "I'm {n}. I moved to {c} last year.", "My name is {n}. I come from {c}.",
    "{n} is my name, and {c} is my city.", "In {c} everyone knows me as {n}.",
    "I live in {c} and my name is {n}.", "Hello, this is {n} from {c}.",
    "People call me {n}. I work in {c}.", "I was born in {c}. My name is {n}.",
    "{c} is where I live, and I am called {n}.", "Good morning! I am {n}, and I live in {c}.",
    "Please call me {n}. I am at home in {c}.", "Here is {n}. My city is {c}.",
    "I am called {n} and {c} is my home.", "Nice to meet you. My name is {n} and I come from {c}.",
    "From {c} I send you a hello. I am {n}.",
)  # fmt: skip

NAME_QUESTIONS = (
    "What is my name?", "Do you remember my name?", "Who am I?", "Tell me my name.",
    "Can you say what I am called?", "What did I say my name was?", "My name, do you know it?",
    "What am I called?", "Please tell me who I am.", "How am I called?", "Do you know my name?",
    "Say my name, please.", "I told you my name. What is it?", "What was my name again?",
    "Which name did I give you?", "And who am I?", "Do you still know my name?",
    "Please say what my name is.", "What name do I have?", "Can you tell me my name?",
)  # fmt: skip

CITY_QUESTIONS = (
    "Where do I live?", "Which city am I from?", "Do you know where my home is?", "What is my city?",
    "Can you recall my town?", "Where is my home?", "Tell me where I live.", "In which city do I live?",
    "Do you remember my city?", "Which city did I tell you about?", "My city, do you know it?",
    "Where am I from?", "What was my city again?", "Please say where I live.",
    "Do you still know where I live?", "What is the name of my city?", "Where did I say I live?",
    "I told you my city. What is it?", "Can you tell me where my home is?", "And where do I live?",
)  # fmt: skip

SAY_FEELING = (
    "I am {f} today.", "I feel {f}.", "I feel so {f} right now.", "Today I am very {f}.",
    "Somehow I am {f}.", "I have been {f} all day.", "It is late and I am {f}.", "I'm {f}.",
    "Right now I feel very {f}.", "Why am I so {f}?", "I think I am {f}.", "I woke up {f} this morning.",
    "{f} is how I feel today.", "My day was long and now I am {f}.", "Can you help me? I am {f}.",
    "Oh, I am so {f}!", "I am a little {f}.", "What can I do when I am {f}?",
    "Do you know what it is like to be {f}?", "I was fine, but now I am {f}.",
)  # fmt: skip

SAY_FAVOURITE = (
    "My favourite {k} is the {v}.", "I like the {v} most. What about you?", "I love the {v}!",
    "Do you like the {v}?", "For me the best {k} is the {v}.", "I saw a {v} today!",
    "The {v} is my favourite {k}.", "Of all, I like the {v} best.", "Is the {v} a good {k}?",
    "What do you think of the {v}?", "No {k} is as nice as the {v}.", "The {v} makes me happy.",
    "Tell me, do you like the {v}?", "My child loves the {v}.", "If you ask me, the {v} is the best {k}.",
    "I think the {v} is a very nice {k}.", "The {v} is so nice!", "Which {k} do I like? The {v}!",
    "I have always liked the {v}.", "Let us talk about the {v}.",
)  # fmt: skip

ASK_CAPITAL = (
    "What is the capital of {x}?", "Which city is the capital of {x}?", "Tell me the capital of {x}.",
    "{x}: what is its capital?", "Name the capital city of {x}.", "Capital of {x}?",
    "I need the capital of {x}.", "Do you know the capital of {x}?", "The capital of {x} is which city?",
    "For {x}, what is the capital?", "Which city is the capital in {x}?",
    "Please tell me the capital city of {x}.", "What city is the capital of {x}?",
    "I forgot the capital of {x}. What is it?", "Can you name the capital of {x}?",
    "My question is about {x}. What is the capital?", "{x} has which capital?",
    "Say the capital of {x}, please.", "In {x}, which city is the capital?",
    "What is the name of the capital of {x}?",
)  # fmt: skip

ASK_OPPOSITE = (
    "What is the opposite of {x}?", "Give me the opposite of {x}.", "Which word is the opposite of {x}?",
    "{x} - what is the opposite?", "The opposite of {x} is what?", "Opposite of {x}?",
    "What word means the opposite of {x}?", "Tell me the opposite of {x}.",
    "Do you know the opposite of {x}?", "{x} is the opposite of which word?", "I need the opposite of {x}.",
    "For {x}, what is the opposite?", "Please name the opposite of {x}.",
    "The word is {x}. What is the opposite?", "Can you tell me the opposite of {x}?",
    "What do you call the opposite of {x}?", "If it is not {x}, what is the opposite?",
    "Say the opposite of {x}, please.", "Find the opposite of {x}.", "{x}: name the opposite.",
)  # fmt: skip

SAY_PLAN = (
    "On {d} I will travel to {c}.", "I plan to visit {n} in {c} on {d}.", "What should I do in {c} on {d}?",
    "I have a free {d} in {c}. Any ideas?", "{d} is my day off and I am going to {c}.",
    "Next {d} we go to {c}. Any tips?", "I will be in {c} on {d}.", "We want to see {c} on {d}.",
    "On {d} I will meet {n} in {c}.", "{c} is where I will be on {d}.", "My train to {c} leaves on {d}.",
    "On {d} I go to {c} with {n}.", "I am going to {c} on {d}. What can I see there?",
    "What is there to see in {c}? I arrive on {d}.", "My plan for {d} is a trip to {c}.",
    "I will spend {d} in {c}.", "{n} and I will go to {c} on {d}.",
    "This {d} I will see {c} for the first time.", "I have a trip to {c}. It is on {d}.",
    "Can you help me plan my {d} in {c}?",
)  # fmt: skip

AFTER_PLAN = (
    ("Where am I going?", "You are going to {c}."), ("Which day was it?", "It was {d}."),
    ("When is my trip?", "Your trip is on {d}."), ("What was the city again?", "The city is {c}."),
    ("Do you still know my plan?", "Yes, you are going to {c} on {d}."),
    ("Which city will I visit?", "The city is {c}."), ("On which day do I go?", "It was {d}."),
    ("Where did I say I am going?", "You are going to {c}."),
    ("What day is my trip?", "Your trip is on {d}."), ("When will I be there?", "Your trip is on {d}."),
    ("Tell me my plan again.", "Yes, you are going to {c} on {d}."),
    ("Where is my trip going?", "You are going to {c}."), ("What day did I say?", "It was {d}."),
    ("Please tell me the city again.", "The city is {c}."), ("Where will I be?", "You are going to {c}."),
    ("Do you remember when I go?", "Your trip is on {d}."),
    ("What is my plan?", "Yes, you are going to {c} on {d}."),
    ("I forgot the day. When was it?", "It was {d}."), ("Do you remember the city?", "The city is {c}."),
    ("So where am I going?", "You are going to {c}."),
)  # fmt: skip

SAY_PET = (
    "I have {a} called {n}.", "My {b} is named {n}.", "{n} is my {b}.", "We have {a}, {n}.",
    "This morning my {b} {n} woke me up.", "Let me tell you about my {b} {n}.",
    "At home I have {a} called {n}.", "{n}, my {b}, is very nice.", "I live with {a}. The name is {n}.",
    "Look, this is my {b} {n}!", "My family has {a}. We call it {n}.", "The name of my {b} is {n}.",
    "I got {a} last week and called it {n}.", "{n} lives with me. {n} is {a}.", "Do you know my {b} {n}?",
    "My {b} {n} is asleep now.", "Yesterday I got {a}, {n}.", "I call my {b} {n}.",
    "There is {a} in my house. It is called {n}.", "Today I played with my {b} {n}.",
)  # fmt: skip

AFTER_PET = (
    ("What is my {b} called?", "Your {b} is called {n}."), ("Which animal do I have?", "You have {a}."),
    ("What animal is {n}?", "{n} is {a}."),
    ("Do you remember the name of my {b}?", "Yes, your {b} is called {n}."),
    ("Who is {n}?", "{n} is your {b}."), ("What is the name of my {b}?", "Your {b} is called {n}."),
    ("What kind of animal do I have?", "You have {a}."), ("Is {n} an animal? Which one?", "{n} is {a}."),
    ("Do you know who {n} is?", "{n} is your {b}."), ("How do I call my {b}?", "Your {b} is called {n}."),
    ("Do you remember my animal?", "You have {a}."), ("Which animal is {n}?", "{n} is {a}."),
    ("Tell me who {n} is.", "{n} is your {b}."),
    ("My {b} has a name. Do you remember it?", "Yes, your {b} is called {n}."),
    ("What animal do I have at home?", "You have {a}."),
    ("Tell me the name of my {b}.", "Your {b} is called {n}."),
    ("What kind of animal is {n}?", "{n} is {a}."), ("I spoke of {n}. Who is that?", "{n} is your {b}."),
    ("What did I call my {b}?", "Your {b} is called {n}."), ("And who is {n}?", "{n} is your {b}."),
)  # fmt: skip

FAREWELLS = (
    "Bye!", "Thank you, goodbye.", "I have to go now.", "See you later!", "Good night!",
    "That was helpful.", "Thanks for the talk!", "Talk to you tomorrow.", "Thanks!", "Take care!",
    "Goodbye!", "That is all, thank you.", "Thanks, bye!", "Have a nice day!", "I must leave now.",
    "Good night and thank you.", "See you soon!", "Thank you for your help.", "It was nice to talk to you.",
    "That is all for today.",
)  # fmt: skip
