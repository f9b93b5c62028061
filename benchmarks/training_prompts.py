"""Prompts to train drafters on, for the results in `results/training`: chat.jsonl, code.jsonl and math.jsonl.

    python benchmarks/training_prompts.py DATA OUT

DATA has Spec-Bench, HumanEval and GSM8K (train). None of the prompts that ship with Slipstream is among them:
those are what the drafters are evaluated on. Public chat prompts of a few hundred are too few, so most are
made of a topic and a way to ask; they need not be good prompts, the target's answers are what is learnt.
"""

import gzip
import itertools
import json
import random
import sys
from pathlib import Path

TOPICS = """bread baking; cycling to work; the water cycle; ancient Rome; learning the guitar; black
holes; job interviews; houseplants; saving money; the French Revolution; sleep; chess openings; vegetable
gardens; climate change; public speaking; dogs; the human heart; coffee; photography; rivers; electric
cars; time management; volcanoes; learning Spanish; bees; renting a flat; the immune system; hiking; jazz;
online privacy; earthquakes; meditation; solar panels; the printing press; running a marathon; cheese;
teaching children to read; whales; tax returns; the Silk Road; knitting; vaccines; remote work; glaciers;
board games; moving to a new city; bridges; healthy breakfasts; the Moon; conflict at work; bird watching;
recycling; Shakespeare; stage fright; bacteria; camping with children; inflation; robots; the Olympic
games; wine; friendship; antibiotics; lighthouses; insomnia; making a budget; painting a room; desert
animals; first aid; the stock market; tea; airports; violins; rain"""
WAYS = """Explain {} to a beginner.; Give me five tips about {}.; Write a short story about {}.; What are
common mistakes people make with {}?; Write a friendly email to a colleague about {}.; Why is {}
important?; What should I know about {} before I start?; Write a short poem about {}.; Make a weekly plan
that has to do with {}.; Compare two different views of {}.; Summarise the history of {} in a paragraph.;
My friend asked me about {}. What should I say?; List the advantages and disadvantages of {}.; Write a
dialogue between two people about {}.; I have a question about {}: where do I begin, and what does it
cost?; Describe {} as if to a child of ten."""
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
permutations of a string; computes compound interest; converts Roman numerals"""
CODE_WAYS = """Write a Python function that {}.; Write a Python function that {}, with type hints and a
docstring.; Show me, with an example, how to write code that {} in Python.; Write a function that {} and
explain each step.; Write a function that {}, and three tests for it.; Write a JavaScript function that
{}."""
CHAT = ("qa", "translation", "writing", "roleplay", "reasoning", "stem", "humanities", "extraction")
MOST = 900


def parts(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(";")]


def filled(ways: str, topics: str) -> list[str]:
    return [way.format(topic) for way, topic in itertools.product(parts(ways), parts(topics))]


def main() -> None:
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    spec_bench = [json.loads(line) for line in (data / "specbench_question.jsonl").read_text().splitlines()]
    chat = [row["turns"][0] for row in spec_bench if row["category"] in CHAT] + filled(WAYS, TOPICS)
    human_eval = gzip.decompress((data / "HumanEval.jsonl.gz").read_bytes()).decode()
    code = [{"prompt": prompt} for prompt in filled(CODE_WAYS, TASKS)]
    code += [json.loads(line) for line in human_eval.splitlines()]
    math = [json.loads(line) for line in (data / "gsm8k_train.jsonl").read_text().splitlines()]
    for name, rows in (("chat", [{"prompt": prompt} for prompt in chat]), ("code", code), ("math", math)):
        random.Random(0).shuffle(rows)
        (out / f"train-{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:MOST]))


if __name__ == "__main__":
    main()
