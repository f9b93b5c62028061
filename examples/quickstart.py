import sys

from slipstream import LLM, SamplingParams


def main() -> None:
    llm = LLM(sys.argv[1])  # takes what vllm.LLM takes; speculate="auto" is the default

    greedy = SamplingParams(temperature=0.0, max_tokens=48)
    for output in llm.generate(["List the days of the week: Monday, Tuesday,"], greedy):
        print(output.outputs[0].text)

    question = [{"role": "user", "content": "Repeat after me, twice: the slipstream carries us along."}]
    print(llm.chat(question, greedy)[0].outputs[0].text)

    counted = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
    drafted = counted["vllm:spec_decode_num_draft_tokens"]
    accepted = counted["vllm:spec_decode_num_accepted_tokens"]
    print(f"{accepted} of {drafted} draft tokens were accepted")


if __name__ == "__main__":
    main()
