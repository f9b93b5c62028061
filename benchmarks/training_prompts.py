"""Prompts to train drafters on and to hold out, for the results in `results/training`: train-chat.jsonl,
held-chat.jsonl and the same for code and math.

    python benchmarks/training_prompts.py DATA OUT

DATA has Spec-Bench, HumanEval and GSM8K. Public chat prompts of a few hundred are too few, so most are made
of a topic and a way to ask; they need not be good prompts, the target's answers are what is learnt. Nothing
held out is trained on: topics, tasks and public prompts are apart, and math has GSM8K's own test set. None of
the prompts that ship with Slipstream is among either.
"""

import gzip
import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

TOPICS = """bread baking; cycling to work; the water cycle; ancient Rome; learning the guitar; black
holes; job interviews; houseplants; saving money; the French Revolution; sleep; chess openings; vegetable
gardens; climate change; public speaking; dogs; the human heart; coffee; photography; rivers; electric
cars; time management; volcanoes; learning Spanish; bees; renting a flat; the immune system; hiking; jazz;
online privacy; earthquakes; meditation; solar panels; the printing press; running a marathon; cheese;
teaching children to read; whales; tax returns; the Silk Road; knitting; vaccines; remote work; glaciers;
board games; moving to a new city; bridges; healthy breakfasts; the Moon; conflict at work; bird watching;
recycling; Shakespeare; stage fright; bacteria; camping with children; inflation; robots; the Olympic
games; wine; friendship; antibiotics; lighthouses; insomnia; making a budget; painting a room; desert
animals; first aid; the stock market; tea; airports; violins; rain; a sourdough starter; the Vikings;
a difficult customer; swimming; the tides; second-hand shopping; honey; dinosaurs; a broken bicycle;
learning to drive; rice; a school trip; the pyramids; yoga; noisy neighbours; the solar system; soup;
choosing a laptop; wolves; a surprise party; the Renaissance; back pain; fermented food; the water supply
of a city; a long train journey; mushrooms; museums; a first apartment; the ocean floor; letters to the
editor; apples; a power cut; juggling; weather forecasts; a job offer; penguins; the steam engine; dance;
a lost suitcase; rainforests; a small business; butterflies; memory; city parks; an old radio; comets;
learning to cook; compost; the Great Wall; a family reunion; opera; keeping a diary; snow; a village
school; sharks; emergency savings; poetry; a leaking tap; maps; exam stress; owls; a charity run;
electricity; candles; a new colleague; deserts; the alphabet; a rainy weekend; horses; a garden pond;
theatre; seasonal fruit; credit cards; the brain; a street market; winter sports; the telephone; parrots;
a podcast; castles; wedding speeches; salt; harbours; grandparents; a science fair; sailing"""
WAYS = """Explain {} to a beginner.; Give me five tips about {}.; Write a short story about {}.; What are
common mistakes people make with {}?; Write a friendly email to a colleague about {}.; Why is {}
important?; What should I know about {} before I start?; Write a short poem about {}.; Make a weekly plan
that has to do with {}.; Compare two different views of {}.; Summarise the history of {} in a paragraph.;
My friend asked me about {}. What should I say?; List the advantages and disadvantages of {}.; Write a
dialogue between two people about {}.; I have a question about {}: where do I begin, and what does it
cost?; Describe {} as if to a child of ten.; I am writing a blog post about {}. Please suggest a title, an
introduction and three headings.; What would an expert say about {}, and what would a sceptic answer?;
Please write a polite complaint that has to do with {}.; Which three questions about {} are asked most
often? Answer each in two sentences.; Write the opening of a talk about {} for a small audience.; I feel
overwhelmed by {}. Can you help me to break it down into small steps?; Write a product description that
mentions {}.; What has changed about {} in the last hundred years?"""
TASKS = """reverses a string; checks whether a word is a palindrome; counts the vowels in a text; finds
the largest number in a list; merges two sorted lists; removes duplicates from a list; computes the
factorial of a number; says whether a number is prime; reads a CSV file and returns its rows; counts how
often each word occurs; sorts a list of dictionaries by a key; converts Celsius to Fahrenheit; flattens a
nested list; finds the second smallest number; validates an email address; generates the Fibonacci
sequence; rotates a list by k places; finds common elements of two lists; computes the greatest common
divisor; capitalises each word; sums the digits of a number; finds the longest word in a sentence;
transposes a matrix; groups words by their first letter; parses a date; implements a stack; implements a
queue; implements binary search; implements bubble sort; computes the median of a list; checks balanced
brackets; counts lines in a file; replaces spaces with underscores; finds missing numbers in a range;
multiplies two matrices; encodes a text with a Caesar cipher; splits a list into chunks; finds all
permutations of a string; computes compound interest; converts Roman numerals; merges overlapping
intervals; limits how often a function is called; caches the results of a function; writes a dictionary to
a JSON file; walks through a folder and sums the sizes of its files; parses a query string; checks a
password for length and digits; computes a moving average; finds the shortest path in a grid; implements a
linked list; implements a binary tree with insert and search; implements quick sort; downloads a file and
retries three times; logs how long a function takes; parses command-line arguments; rounds prices to two
decimals; converts a number to binary; compares two version numbers; finds anagrams in a list of words;
shuffles a deck of cards; draws a triangle of stars; counts inversions in a list; simulates rolling two
dice; keeps the last ten values it was given; turns snake case into camel case; reads settings from an INI
file; selects the customers with more than three orders from a database; finds the most frequent element;
adds two numbers given as strings; validates an IP address; computes the distance between two points;
formats a number of seconds as hours and minutes; implements a bank account with deposit and withdraw;
sends items from a producer to a consumer thread; truncates a text at a word boundary; computes a
histogram; solves a quadratic equation; counts the days between two dates; finds the intersection of two
rectangles; prints a multiplication table; evaluates a simple arithmetic expression"""
CODE_WAYS = """Write a Python function that {}.; Write a Python function that {}, with type hints and a
docstring.; Show me, with an example, how to write code that {} in Python.; Write a function that {} and
explain each step.; Write a function that {}, and three tests for it.; Write a JavaScript function that
{}.; Implement a Python class that {}. Raise ValueError for wrong input, and give two usage examples.; My
code that {} is slow. How would you write it, and why?; Write a program that {}, reading its input from the
command line.; Write a Java method that {}."""
CHAT = ("qa", "translation", "writing", "roleplay", "reasoning", "stem", "humanities", "extraction")
MOST = 2000
HELD_OUT = 32  # of each sort, half of them public where there are such
EVERY = 8  # of the public prompts, the topics and the tasks, one in so many is held out


def parts(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(";")]


def filled(ways: str, topics: list[str]) -> list[Any]:
    return [{"prompt": way.format(topic)} for way, topic in itertools.product(parts(ways), topics)]


def split(several: list[Any]) -> tuple[list[Any], list[Any]]:
    """(to train on, held out)"""
    random.Random(0).shuffle(several)
    return [one for i, one in enumerate(several) if i % EVERY], several[::EVERY]


def rows_of(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def main() -> None:
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    spec_bench = rows_of((data / "specbench_question.jsonl").read_text())
    human_eval = rows_of(gzip.decompress((data / "HumanEval.jsonl.gz").read_bytes()).decode())
    public_chat = [{"prompt": row["turns"][0]} for row in spec_bench if row["category"] in CHAT]
    for name, public, ways, topics in (
        ("chat", public_chat, WAYS, TOPICS),
        ("code", human_eval, CODE_WAYS, TASKS),
    ):
        (public_train, public_held), (train, held) = split(public), split(parts(topics))
        write(
            out, name, public_train + filled(ways, train), sampled(public_held) + sampled(filled(ways, held))
        )
    gsm8k = [rows_of((data / f"gsm8k_{part}.jsonl").read_text()) for part in ("train", "test")]
    write(out, "math", gsm8k[0], sampled(gsm8k[1], HELD_OUT))


def sampled(rows: list[Any], number: int = HELD_OUT // 2) -> list[Any]:
    return random.Random(0).sample(rows, number)


def write(out: Path, name: str, train: list[Any], held_out: list[Any]) -> None:
    random.Random(0).shuffle(train)
    for kind, rows in (("train", train[:MOST]), ("held", held_out)):
        (out / f"{kind}-{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
