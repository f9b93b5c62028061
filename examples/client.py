# slipstream serve MODEL listens on 127.0.0.1:8000 and speaks the OpenAI protocol.
from openai import OpenAI

openai_api_key = "EMPTY"
openai_api_base = "http://localhost:8000/v1"

client = OpenAI(api_key=openai_api_key, base_url=openai_api_base)
model = client.models.list().data[0].id

completion = client.completions.create(
    model=model, prompt="The future of AI is", max_tokens=16, temperature=0
)
print("Completion:", completion.choices[0].text)

messages = [{"role": "user", "content": "What is the capital of France?"}]
request = {"model": model, "messages": messages, "max_tokens": 32, "temperature": 0}
chat = client.chat.completions.create(**request)
print("Chat:", chat.choices[0].message.content)

print("Stream:", end=" ")
for part in client.chat.completions.create(**request, stream=True):
    print(part.choices[0].delta.content or "", end="", flush=True)
print()
