"""model.py SIZE OUT: write a Qwen2-shaped model folder without weights, for `--load-format dummy`.

Speed and memory are those of a real model of that shape; the text it writes is noise. SIZE: tiny
(for a CPU), 0.5b, 1.5b, 7b, 32b. The tokenizer is trained here, on this file, so that nothing is
downloaded; send prompts as token ids when their length must be exact.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SHAPES = {  # hidden size, layers, heads, KV heads, intermediate size
    "tiny": (512, 8, 8, 2, 2048),
    "0.5b": (896, 24, 14, 2, 4864),
    "1.5b": (1536, 28, 12, 2, 8960),
    "7b": (3584, 28, 28, 4, 18944),
    "32b": (5120, 64, 40, 8, 27648),
}
TIED = ("tiny", "0.5b", "1.5b")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer(path: Path, words: int) -> None:
    """A byte-level tokenizer in which every id below `words` decodes to something."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    tokenizer.save(str(path))
    saved = json.loads(path.read_text())
    vocabulary = saved["model"]["vocab"]
    taken = set(vocabulary.values()) | {token["id"] for token in saved["added_tokens"]}
    vocabulary.update({f"\u0120w{i}": i for i in range(words) if i not in taken})
    path.write_text(json.dumps(saved))


def config(size: str, words: int) -> dict[str, object]:
    """What transformers calls config.json."""
    hidden, layers, heads, kv_heads, intermediate = SHAPES[size]
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": size in TIED,
        "torch_dtype": "bfloat16",
        "vocab_size": words,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "initializer_range": 0.02,
        "use_sliding_window": False,
    }


def main(size: str, out: Path) -> None:
    """Write the folder."""
    words = 8192 if size == "tiny" else 151936
    out.mkdir(parents=True, exist_ok=True)
    train_tokenizer(out / "tokenizer.json", words)
    files = {
        "config.json": config(size, words),
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": 32768,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content))
    print(f"{out}: {size}, {words} tokens")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
