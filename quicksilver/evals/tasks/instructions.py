"""One hundred requests whose form can be checked by a program: four each of 25 kinds. Content is not judged.

The wordings and topics are not used in training; training records of the same kinds have different ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from quicksilver.evals import checks
from quicksilver.evals.checks import Check
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.task import Answer, Generate, Metrics, Task


@dataclass(frozen=True, slots=True)
class Instruction:
    kind: str
    text: str
    check: Check


def _counts() -> Iterator[Instruction]:
    for topic, num in (("the ocean", 10), ("winter", 8), ("a library", 12), ("bread", 6)):
        yield Instruction("words", f"Describe {topic} using exactly {num} words.", checks.word_count(num, num))
    for topic, num in (("gravity", 20), ("a kitchen", 15), ("friendship", 25), ("the moon", 30)):
        yield Instruction("at_most", f"Explain {topic} in no more than {num} words.", checks.word_count(1, num))
    for topic, num in (("trains", 40), ("rivers", 50), ("music", 60), ("gardens", 45)):
        yield Instruction("at_least", f"Tell me about {topic} in {num} words or more.", checks.word_count(num, 10**6))
    for topic, num in (("cats", 2), ("Rome", 3), ("coffee", 4), ("the sun", 1)):
        yield Instruction("sentences", f"Give me {num} sentence(s) on {topic}, no more.", checks.sentence_count(num))
    for topic, num in (("sleep", 2), ("travel", 3), ("mountains", 2), ("school", 4)):
        text = f"Write {num} paragraphs about {topic}, with a blank line between them."
        yield Instruction("paragraphs", text, checks.paragraph_count(num))


def _lists() -> Iterator[Instruction]:
    for thing, num in (("kinds of weather", 4), ("kitchen tools", 5), ("musical instruments", 3), ("insects", 6)):
        text = f"I need {num} {thing} as a bullet list, each line starting with a hyphen."
        yield Instruction("bullets", text, checks.bullet_count(num))
    for thing, num in (("reasons to exercise", 3), ("steps to boil an egg", 5), ("board games", 4), ("oceans", 5)):
        text = f"Make a numbered list of {num} {thing}."
        yield Instruction("numbered", text, checks.numbered_count(num))
    for thing, num in (("trees", 4), ("currencies", 3), ("pieces of furniture", 5), ("herbs", 6)):
        text = f"Name {num} {thing} on a single line with commas between them. Write nothing else."
        yield Instruction("commas", text, checks.comma_count(num))
    for thing, num in (("shapes", 3), ("planets", 4), ("drinks", 5), ("metals", 2)):
        text = f"Give {num} {thing} as a JSON list of strings. Output only the JSON."
        yield Instruction("json_list", text, checks.json_list(num))
    for word, num in (("lamp", 3), ("river", 4), ("stone", 5), ("cloud", 2)):
        yield Instruction("repeat", f'Say the word "{word}" {num} times and nothing else.', checks.repeats(word, num))


def _casing() -> Iterator[Instruction]:
    for question in ("What do bees make?", "Who wrote Hamlet?", "Why do we sleep?", "What is a bicycle?"):
        yield Instruction("upper", f"{question} Your whole reply must be in capital letters.", checks.all_upper)
        yield Instruction("lower", f"{question} Reply without any capital letter.", checks.all_lower)
        yield Instruction("quoted", f"{question} Put your whole reply inside double quotation marks.", checks.quoted)
        yield Instruction("line", f"{question} Keep your reply on one line.", checks.single_line)
        text = f"{question} Give your reply a title in double angle brackets, like <<this>>."
        yield Instruction("title", text, checks.titled)


def _short() -> Iterator[Instruction]:
    yes_no = checks.only_word("yes", "no")
    for question in ("Do fish live in water?", "Is a tomato blue?", "Can birds sing?", "Is fire cold?"):
        yield Instruction("yes_no", f"{question} Say only yes or no.", yes_no)
    for question in ("Name a colour.", "Name an animal with four legs.", "Name a season.", "Name a metal."):
        yield Instruction("one_word", f"{question} Use a single word.", checks.one_word)
    for question in ("How many legs has a dog?", "What is 5 times 3?", "How many months has a year?", "What is 9 - 4?"):
        yield Instruction("digits", f"{question} Write only the number, in digits.", checks.only_digits)
    for keys, thing in ((("title", "author"), "a novel"), (("name", "age"), "a person")):
        text = f"Invent {thing} and output one JSON object with the keys {' and '.join(keys)}. No other text."
        yield Instruction("json_keys", text, checks.json_keys(*keys))
    for keys, thing in ((("city", "country"), "Tokyo"), (("animal", "sound"), "a cow")):
        text = f"Describe {thing} as one JSON object with the keys {' and '.join(keys)}, and nothing around it."
        yield Instruction("json_keys", text, checks.json_keys(*keys))
    for language, topic in (("French", "rain"), ("Spanish", "your day"), ("German", "a dog"), ("Spanish", "food")):
        text = f"Write two sentences about {topic} in {language}."
        yield Instruction("language", text, checks.in_language(language))


def _phrases() -> Iterator[Instruction]:
    for topic, end in (("rain", "The end."), ("tea", "Thank you."), ("books", "Good night."), ("cars", "I am done.")):
        text = f'Write a short note about {topic}. Its last words must be "{end}"'
        yield Instruction("ends", text, checks.ends(end))
    for topic, start in (("dogs", "Well,"), ("snow", "Listen:"), ("maps", "Dear friend,"), ("clocks", "Once,")):
        text = f'Write a short note about {topic}. Its first words must be "{start}"'
        yield Instruction("begins", text, checks.begins(start))
    for first, second in (("apple", "bridge"), ("yellow", "engine"), ("doctor", "window"), ("paper", "horse")):
        text = f'Write one sentence that has both the word "{first}" and the word "{second}" in it.'
        yield Instruction("contains", text, checks.contains(first, second))
    for topic in ("a forest", "a city", "a beach", "a farm"):
        yield Instruction("no_comma", f"Describe {topic} and use no comma at all.", checks.lacks(","))
    for topic, word in (("the sea", "water"), ("a cat", "fur"), ("winter", "snow"), ("a car", "wheel")):
        text = f'Describe {topic} and never use the word "{word}".'
        yield Instruction("no_word", text, checks.lacks(word))


def load(data: Path) -> Iterable[Instruction]:
    return [*_counts(), *_lists(), *_casing(), *_short(), *_phrases()]


def ask(instruction: Instruction, writer: PromptBuilder) -> Generate:
    prompt = writer.chat(instruction.text)
    return Generate(prompt.ids, 192, prompt.stop, prompt.stop_ids)


def score(instruction: Instruction, answer: Answer) -> Metrics:
    kept = float(instruction.check(answer.text.strip()))
    return {"followed": kept, f"followed_{instruction.kind}": kept}


TASKS = (Task("instructions", "chat", ("followed",), load, ask, score, 100),)
