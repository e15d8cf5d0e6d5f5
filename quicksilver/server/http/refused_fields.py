"""Fields of other servers that change the answer and that this server cannot honour: a body that sets one is refused.

Any other unknown field is ignored with a warning. A body that has a field of the same name reads it itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quicksilver.errors import InvalidRequest
from quicksilver.server.http.fields import Wire

# Name -> the values that leave the answer as it is. Null, an empty list and an empty object always do.
REFUSED: dict[str, tuple[object, ...]] = {
    # OpenAI
    "audio": (),
    "best_of": (0, 1),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": (),
    "prediction": (),
    "web_search_options": (),
    # vLLM
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "bad_words": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": (),
    "early_stopping": (False,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": (),
    "min_tokens": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "stop_token_ids": (),
    "structured_outputs": (),
    "truncate_prompt_tokens": (-1,),
    "use_beam_search": (False,),
    # SGLang
    "ebnf": (),
    "lora_path": (),
    "regex": (),
    "stop_regex": (),
    # llama.cpp and text-generation-webui
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "eta_cutoff": (0,),
    "grammar": ("",),
    "json_schema": (),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "n_predict": (-1,),
    "no_repeat_ngram_size": (0,),
    "repeat_penalty": (1,),
    "smoothing_factor": (0,),
    "tfs_z": (1,),
    "top_a": (0,),
    "typical_p": (1,),
    "xtc_probability": (0,),
}


def refuse_fields(fields: Mapping[str, Any], body: type[Wire]) -> None:
    """Raises InvalidRequest that names the first field of REFUSED that is set and that `body` does not read."""
    for name in fields.keys() & REFUSED.keys():
        value = fields[name]
        if name not in body.model_fields and value not in (None, [], {}) and value not in REFUSED[name]:
            raise InvalidRequest(f"{name}: this field is not supported here", param=name, code="unsupported_parameter")
