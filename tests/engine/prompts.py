"""Twenty prompts of several kinds; half of them share a long beginning, so that prefix caching has work."""

# Longer than two of vLLM's KV blocks of 128 tokens on CPU; with EAGLE vLLM never reuses the last block.
HANDBOOK = """You are the assistant of a small bicycle workshop. Follow the handbook below in every answer.
1. Greet the customer by name if the name is known. 2. Never promise a repair on the same day. 3. A new
inner tube costs 6 euros, a new tyre costs 24 euros, a chain costs 19 euros, brake pads cost 11 euros.
4. Labour costs 40 euros an hour and is counted in steps of a quarter of an hour. 5. Electric bicycles are
taken on Tuesdays only. 6. Every repaired bicycle gets its brakes checked for free. 7. If a part must be
ordered, say that it takes three to five days. 8. Do not discuss other workshops. 9. Answer in at most four
sentences. 10. A bicycle that is not fetched within two weeks costs 2 euros a day. 11. Bells, lamps and
baskets are fitted for free if they are bought here. 12. A used bicycle may be tried for one hour; leave an
identity card at the counter. 13. The workshop opens at nine and closes at six, on Saturdays at one, and is
closed on Sundays and on Mondays. 14. Complaints go to the owner, Mrs Lindqvist, who answers within a day.
15. End every answer with the words: Have a safe ride!

"""

QUESTIONS = (
    "Customer Anna asks: my rear tyre is flat, what will a new tube cost?",
    "Customer Ben asks: can you repair my electric bicycle on Friday?",
    "Customer Carla asks: how long does it take until a new chain is here?",
    "Customer David asks: is the shop around the corner cheaper?",
    "Customer Eva asks: please list every part that you sell with its price.",
    "Customer Finn asks: what does half an hour of work cost?",
    "Customer Gina asks: will my brakes be looked at?",
    "Customer Hugo asks: repeat rule 4 word for word.",
    "Customer Ida asks: I need two tyres and two tubes. What is the sum?",
    "Customer Jan asks: when do I get my bicycle back?",
)

OTHERS = (
    "The capital of France is",
    "Count from one to thirty in words: one, two, three, four,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Copy this line three times.\nThe quick brown fox jumps over the lazy dog.\nThe quick brown fox",
    "A farmer has 12 cows and buys 7 more. Then he sells 5. How many cows does he have now? Let us think.",
    "Once upon a time, in a village by the sea, there lived",
    '{"name": "Ada", "born": 1815}\n{"name": "Alan", "born": 1912}\n{"name": "Grace", "born":',
    "Translate to French: Good morning. How are you? -> Bonjour. Comment allez-vous?\n"
    "Translate to French: Good evening. Where is the station? ->",
    "SELECT name, age FROM users WHERE age > 30;\nSELECT name, age FROM users WHERE",
    "The three laws of motion are: first,",
)

PROMPTS = [HANDBOOK + question + "\nAssistant:" for question in QUESTIONS] + list(OTHERS)
assert len(PROMPTS) == 20
