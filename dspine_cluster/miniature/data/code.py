"""Small Python functions: what to keep, how to change it and what to return, combined and named in many ways."""

from __future__ import annotations

from random import Random

from dspine_cluster.miniature.data.conversation import Conversation, Split, assistant, phrasing, user

_FILTERS = (
    ("even numbers", "even", "{x} % 2 == 0"),
    ("odd numbers", "odd", "{x} % 2 == 1"),
    ("positive numbers", "positive", "{x} > 0"),
    ("negative numbers", "negative", "{x} < 0"),
    ("numbers greater than {k}", "large", "{x} > {k}"),
    ("numbers smaller than {k}", "small", "{x} < {k}"),
    ("multiples of {k}", "divisible", "{x} % {k} == 0"),
    ("numbers that are not {k}", "other", "{x} != {k}"),
    ("numbers", "all", ""),
)
_MAPS = (
    ("", "", "{x}"),
    ("", "", "{x}"),
    ("squares of the ", "squared", "{x} * {x}"),
    ("doubles of the ", "doubled", "2 * {x}"),
    ("halves of the ", "halved", "{x} / 2"),
    ("absolute values of the ", "absolute", "abs({x})"),
    ("cubes of the ", "cubed", "{x} ** 3"),
)
_REDUCTIONS = (
    ("the sum of", "sum", "sum({g})", "total = 0", "total += {e}", "total"),
    ("the product of", "product", "math.prod({g})", "result = 1", "result *= {e}", "result"),
    (
        "the largest of",
        "largest",
        "max({g})",
        "best = None",
        "best = {e} if best is None else max(best, {e})",
        "best",
    ),
    (
        "the smallest of",
        "smallest",
        "min({g})",
        "best = None",
        "best = {e} if best is None else min(best, {e})",
        "best",
    ),
    ("a list of", "list", "[{g}]", "result = []", "result.append({e})", "result"),
    ("a set of", "set", "{{{g}}}", "result = set()", "result.add({e})", "result"),
    ("a sorted list of", "sorted", "sorted({g})", "result = []", "result.append({e})", "sorted(result)"),
)  # fmt: skip
_ASK = (
    "Write a Python function that returns {what} in a list.",
    "Write a function {f} that returns {what} in {v}.",
    "I need Python code for {what} in a list. Call it {f}.",
    "Can you give me a function to get {what} in a list?",
    "Please code a Python function named {f} for {what}.",
    "Define {f}({v}) so that it returns {what}.",
    "How do I compute {what} in a Python list?",
    "Python: {what} in a list {v}, please.",
    "Show me a short function which computes {what} of {v}.",
    "Implement {f}: it takes {v} and gives back {what}.",
    "Given a list {v}, how can I find {what} in it?",
    "I have a list called {v}. Write code that returns {what}.",
    "{what} in a list: how do I write that in Python?",
    "Make a function that takes {v} and returns {what}.",
    "Help me write {f}. The function should return {what} in {v}.",
    "We need {f}({v}). It must return {what}.",
    "Could you show me Python code that finds {what} in a list?",
    "What would a function for {what} in a list look like?",
    "A Python function, please: the input is {v}, the output is {what}.",
    "My list is {v}. I want {what}. Please write the function {f}.",
)
_INTRO = (
    "Here is the function:",
    "This function goes through {v} and returns {what}:",
    "You can write it like this:",
    "Sure. The function {f} does that:",
)
_LISTS = ("numbers", "values", "items", "data", "nums", "xs", "list_of_numbers", "entries")
_VARIABLES = ("n", "x", "value", "number", "item", "v")

_STRING_TASKS = (
    ("reverses a string", "reverse_text", "text", "return text[::-1]"),
    ("checks whether a word is a palindrome", "is_palindrome", "word",
     "word = word.lower()\nreturn word == word[::-1]"),
    ("counts the vowels in a string", "count_vowels", "text", "return sum(1 for c in text if c in 'aeiou')"),
    ("counts how often each word appears", "count_words", "text",
     "counts = {}\nfor word in text.split():\n    counts[word] = counts.get(word, 0) + 1\nreturn counts"),
    ("returns the longest word of a sentence", "longest_word", "sentence", "return max(sentence.split(), key=len)"),
    ("removes all spaces from a string", "remove_spaces", "text", "return text.replace(' ', '')"),
    ("capitalizes every word", "title_case", "text", "return ' '.join(w.capitalize() for w in text.split())"),
    ("returns the first letters of the words", "initials", "name", "return ''.join(word[0] for word in name.split())"),
    ("checks whether two words are anagrams", "are_anagrams", "a, b", "return sorted(a) == sorted(b)"),
    ("computes the factorial of a number", "factorial", "n",
     "result = 1\nfor i in range(2, n + 1):\n    result *= i\nreturn result"),
    ("returns the first n Fibonacci numbers", "fibonacci", "n",
     "a, b = 0, 1\nresult = []\nfor _ in range(n):\n    result.append(a)\n    a, b = b, a + b\nreturn result"),
    ("checks whether a number is prime", "is_prime", "n",
     "if n < 2:\n    return False\nfor i in range(2, int(n ** 0.5) + 1):\n"
     "    if n % i == 0:\n        return False\nreturn True"),
    ("computes the greatest common divisor", "gcd", "a, b", "while b:\n    a, b = b, a % b\nreturn a"),
    ("swaps the keys and values of a dictionary", "invert", "mapping", "return {v: k for k, v in mapping.items()}"),
    ("merges two dictionaries", "merge", "first, second", "return {**first, **second}"),
    ("removes duplicates from a list and keeps the order", "unique", "items",
     "seen = set()\nresult = []\nfor item in items:\n    if item not in seen:\n"
     "        seen.add(item)\n        result.append(item)\nreturn result"),
    ("flattens a list of lists", "flatten", "rows", "return [item for row in rows for item in row]"),
    ("computes the average of a list", "average", "values", "return sum(values) / len(values)"),
    ("reads the lines of a file", "read_lines", "path",
     "with open(path) as file:\n    return file.read().splitlines()"),
    ("adds up the digits of a number", "digit_sum", "n", "return sum(int(d) for d in str(n))"),
    ("converts Celsius to Fahrenheit", "to_fahrenheit", "celsius", "return celsius * 9 / 5 + 32"),
    ("splits a list into chunks", "chunks", "items, size",
     "return [items[i:i + size] for i in range(0, len(items), size)]"),
    ("counts down from n to 1", "countdown", "n", "return list(range(n, 0, -1))"),
    ("finds the index of an item", "find", "items, target",
     "for i, item in enumerate(items):\n    if item == target:\n        return i\nreturn -1"),
)  # fmt: skip
_ASK_TASK = (
    "Write a Python function that {t}.",
    "Please write {f}, a function that {t}.",
    "I want a Python function which {t}. How?",
    "Give me a function {f}({a}) that {t}.",
    "Show me Python code that {t}.",
    "Could you code a helper that {t}?",
    "Implement {f}({a}): it {t}.",
    "How do I write a function that {t}?",
    "I need {f}({a}). It {t}.",
    "Can you show me how to code a function which {t}?",
    "Make a function named {f} that {t}.",
    "Python, please: a function {f} that {t}.",
    "Help me with a function that {t}.",
    "def {f}({a}): please fill it in so that it {t}.",
    "My program needs a function that {t}. Please write it.",
    "Do you know a short Python function that {t}?",
    "Code a function with the name {f} that {t}.",
    "What does a Python function look like that {t}?",
    "The function {f}({a}) {t}. Write it for me.",
    "Let us write a function. It {t}, and its name is {f}.",
)
_RENAMED = ("{f}", "{f}", "my_{f}", "{f}_of", "do_{f}", "{f}2", "get_{f}", "{f}_helper")


def _list_task(rng: Random, split: Split) -> tuple[str, str]:
    kept, kept_name, condition = rng.choice(_FILTERS)
    changed, changed_name, expression = rng.choice(_MAPS)
    reduced, reduced_name, whole, start, step, end = rng.choice(_REDUCTIONS)
    k, v, x = rng.randint(2, 12), rng.choice(_LISTS), rng.choice(_VARIABLES)
    x = "item" if x == v else x
    condition, expression = condition.format(x=x, k=k), expression.format(x=x)
    what = f"{reduced} {changed or 'the '}{kept.format(k=k)}"
    name = "_".join(part for part in (reduced_name, changed_name, kept_name) if part)
    name = rng.choice((name, name, f"get_{name}", f"{name}_{v}"))
    doc = rng.choice(("", f'    """Return {what}."""\n'))
    if rng.random() < 0.5:
        source = f"{expression} for {x} in {v}" + (f" if {condition}" if condition else "")
        body = f"    return {whole.format(g=source)}\n"
        head = "import math\n\n\n" if "math." in body else ""
    else:
        body = f"    {start}\n    for {x} in {v}:\n"
        if condition:
            body += f"        if {condition}:\n            {step.format(e=expression)}\n"
        else:
            body += f"        {step.format(e=expression)}\n"
        body += f"    return {end}\n"
        head = ""
    code = f"{head}def {name}({v}):\n{doc}{body}"
    question = phrasing(rng, _ASK, split).format(what=what, f=name, v=v)
    intro = rng.choice(_INTRO).format(what=what, f=name, v=v)
    return question, f"{intro}\n\n```python\n{code}```"


def _named_task(rng: Random, split: Split) -> tuple[str, str]:
    task, name, arguments, body = rng.choice(_STRING_TASKS)
    name = rng.choice(_RENAMED).format(f=name)
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    doc = rng.choice(("", f'    """{task[0].upper()}{task[1:]}."""\n'))
    question = phrasing(rng, _ASK_TASK, split).format(t=task, f=name, a=arguments)
    intro = rng.choice(("Here is a function that {t}:", "This one {t}:", "The function {f} {t}:")).format(
        t=task, f=name
    )
    return question, f"{intro}\n\n```python\ndef {name}({arguments}):\n{doc}{lines}```"


_RENAME = (
    "Rename it to {g}.",
    "Call it {g} instead.",
    "Please name the function {g}.",
    "Can you change the name to {g}?",
    "I would like the name {g} better.",
    "Use {g} as the name of the function.",
    "{g} is a better name. Change it, please.",
    "Replace the name {f} with {g}.",
    "Now call the function {g}.",
    "Could it be named {g}?",
    "The name {f} is not good. Use {g}.",
    "Change {f} to {g}.",
    "Same function, but with the name {g}.",
    "Let us call it {g}.",
    "Give it the new name {g}.",
    "Write it again and name it {g}.",
)


def _rename_turn(rng: Random, split: Split, answer: str) -> tuple[str, str]:
    code = answer[answer.index("```python") :]
    old = code[code.index("def ") + 4 : code.index("(", code.index("def "))]
    new = rng.choice(("helper", "compute", "run", "solve", "work", "process", "func", "task")) + rng.choice(
        ("", "_it", "_list", "_all", "_one", "_text")
    )
    request = phrasing(rng, _RENAME, split).format(f=old, g=new)
    return request, f"Here it is with the name {new}:\n\n{code.replace(f'def {old}(', f'def {new}(')}"


def conversation(rng: Random, split: Split) -> Conversation:
    """A request for one function; sometimes a second turn that renames it."""
    question, answer = (_list_task if rng.random() < 0.65 else _named_task)(rng, split)
    messages = [user(question), assistant(answer)]
    if rng.random() < 0.15:
        request, renamed = _rename_turn(rng, split, answer)
        messages += [user(request), assistant(renamed)]
    return Conversation(tuple(messages))
