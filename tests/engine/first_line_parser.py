"""A reasoning parser for vLLM: the first line of an answer is reasoning, and is bound by no grammar."""

from vllm.reasoning.abs_reasoning_parsers import ReasoningParserManager
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser


@ReasoningParserManager.register_module("first_line")
class FirstLineParser(BaseThinkingReasoningParser):
    start_token = "<issue_start>"  # of SmolLM2's vocabulary; never written
    end_token = "Ċ"  # a line break, as a piece of the vocabulary
