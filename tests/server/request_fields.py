"""The fields that clients of OpenAI's API, of vLLM and of llama-server send, and what this server makes of each.

Names: openai 2.8.1 on PyPI (types/chat/completion_create_params.py and types/completion_create_params.py), vLLM's protocol of
November 2026 (entrypoints/openai/*/protocol.py), llama-server's README of 0.5.0 (POST /completion). A field moves from one
list to another together with the code: see fields_check.py.
"""

# With these values a request asks for something, and is done. What is not tested in fields_check.py is in the check named.
DONE = {
    "frequency_penalty": 0.5, "logit_bias": {"5": 1}, "max_tokens": 2, "n": 2, "presence_penalty": 0.5, "seed": 3,
    "stop": ["x"], "stream_options": {"include_usage": True}, "temperature": 0.5, "top_p": 0.9, "echo": True, "best_of": 2,
    "service_tier": "auto", "store": False, "verbosity": "medium", "modalities": ["text"],  # their defaults
    # vLLM's
    "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "stop_token_ids": [5], "include_stop_str_in_output": True,
    "ignore_eos": True, "min_tokens": 1, "truncate_prompt_tokens": 2, "truncation_side": "right", "prompt_logprobs": 1,
    "allowed_token_ids": [300], "bad_words": ["x"], "priority": 1, "return_token_ids": True, "cache_salt": "x",
    "skip_special_tokens": True, "spaces_between_special_tokens": True, "use_beam_search": False, "length_penalty": 1.0,
    # llama-server's
    "typical_p": 0.9, "xtc_probability": 0.5, "xtc_threshold": 0.2, "top_n_sigma": 1, "dynatemp_range": 0.5,
    "dynatemp_exponent": 2, "repeat_penalty": 1.1, "repeat_last_n": 16, "dry_multiplier": 0.8, "dry_base": 2,
    "dry_allowed_length": 3, "dry_penalty_last_n": 100, "mirostat": 0, "cache_prompt": True, "n_keep": 0, "min_keep": 0,
    "lora": [],  # with adapters: lora_check
    # grammars
    "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "[0-9]+"}, "guided_json": {"type": "integer"},
    "guided_regex": "[a-z]{3}", "guided_choice": ["yes", "no"], "guided_grammar": 'root ::= "a" | "b"', "grammar": 'root ::= "a"+',
    "json_schema": {"type": "boolean"},
    # our own
    "kv": {"pin": True}, "kv_hints": {"protocol_version": "0.1", "actions": []},
}
DONE_COMPLETION = {**DONE, "logprobs": 1, "parse_special": False, "add_special_tokens": True}
DONE_CHAT = {**DONE, "max_completion_tokens": 2, "logprobs": True, "top_logprobs": 0, "add_generation_prompt": False,
             "chat_template_kwargs": {"a": 1}, "add_special_tokens": False, "continue_final_message": True,
             "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none", "parallel_tool_calls": True}

# Refused by name: the answer would be another one than was asked for.
REFUSED = {
    "audio": {"voice": "x"}, "function_call": {"name": "f"}, "functions": [{"name": "f"}], "modalities": ["audio"],
    "response_format": {"type": "xml"}, "service_tier": "flex", "store": True, "verbosity": "low", "web_search_options": {"a": 1}, "suffix": "x",
    # vLLM's
    "use_beam_search": True, "length_penalty": 2, "skip_special_tokens": False, "spaces_between_special_tokens": False,
    "watermarking": True, "logprob_token_ids": [5], "documents": [{"title": "x", "text": "y"}], "chat_template": "{{ 1 }}",
    "structured_outputs": {"structural_tag": "x"}, "logits_processors": ["x"], "prompt_embeds": "eA==", "return_tokens_as_token_ids": True,
    "return_prompt_text": True, "repetition_detection": {"min_count": 2}, "kv_transfer_params": {"a": 1},
    "ec_transfer_params": {"a": 1},
    # llama-server's, and text-generation-webui's
    "mirostat": 2, "samplers": ["top_k"],
    "dry_sequence_breakers": ["x"], "n_predict": 5, "n_keep": 5, "cache_prompt": False, "n_probs": 3, "min_keep": 2,
    "t_max_predict_ms": 5, "post_sampling_probs": True, "return_tokens": True, "timings_per_token": True,
    "return_progress": True, "tfs_z": 0.5, "top_a": 0.5, "epsilon_cutoff": 3, "eta_cutoff": 3, "mirostat_mode": 1,
}
REFUSED_COMPLETION = {**REFUSED, "add_special_tokens": False, "tools": [{"type": "function", "function": {"name": "f"}}],
                      "tool_choice": "required"}
REFUSED_CHAT = {**REFUSED, "add_special_tokens": True, "tool_choice": "required", "thinking_token_budget": 5}

# Named in X-Kvasir-Ignored: hints that change no token, records of the client's own, and what nobody here knows.
NAMED = {
    "user": "x", "metadata": {"a": "b"}, "prompt_cache_key": "x", "prompt_cache_retention": "24h", "safety_identifier": "x",
    "prediction": {"type": "content", "content": "x"},
    # vLLM's
    "include_reasoning": False, "media_io_kwargs": {"a": {}}, "mm_processor_kwargs": {"a": 1},
    "request_id": "x", "session_id": "x", "vllm_xargs": {"a": 1}, "stream_interval": 5, "routed_experts_prompt_start": 1,
    "return_token_offsets": True, "return_mm_kwargs": True,
    # llama-server's
    "mirostat_tau": 5, "mirostat_eta": 0.1, "id_slot": 3,
}
NAMED_COMPLETION = {**NAMED, "chat_template_kwargs": {"a": 1}, "top_logprobs": 2, "parallel_tool_calls": True, "reasoning_effort": "low",
                    "thinking_token_budget": 5}
# An effort is one of thoughts, which the template of the model does not write.
NAMED_CHAT = {**NAMED, "prompt": "x", "parse_special": True, "reasoning_effort": "low"}

# All that openai 2.8.1 can send.
OPENAI_CHAT = """messages model audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens metadata
modalities n parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_retention reasoning_effort response_format
safety_identifier seed service_tier stop store stream_options temperature tool_choice tools top_logprobs top_p user verbosity
web_search_options stream""".split()
OPENAI_COMPLETION = """model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream_options
suffix temperature top_p user stream""".split()
