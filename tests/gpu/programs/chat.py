import time, torch
from transformers import LlamaConfig, LlamaForCausalLM
net = LlamaForCausalLM(LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=4, vocab_size=32000)).to("cuda", torch.bfloat16).eval()
while True:
    t = time.time()
    asked = torch.randint(0, 32000, (1, 64), device="cuda")
    with torch.inference_mode():
        out = net.generate(asked, max_new_tokens=128, do_sample=False, pad_token_id=0, eos_token_id=None)
    print(round(128 / (time.time() - t), 1), "tok/s", flush=True)
