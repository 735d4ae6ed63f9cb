"""vLLM's names of options that Draftline has under other names, and of options that it does not have.

`Options` reads both tables, so `LLM`, the command line and YAML files know them alike. docs/from-vllm.md shows them.
"""

from __future__ import annotations

from collections.abc import Mapping

ENGINE_ALIASES: Mapping[str, str] = {
    "max_num_batched_tokens": "max_batched_tokens",
    "enable_prefix_caching": "prefix_caching",
    "seed": "default_seed",
    "num_speculative_tokens": "draft_tokens",
    "speculative_model": "draft_model",
    "scheduling_policy": "scheduling",
}
"""Options of an engine, by vLLM's names."""

SERVER_ALIASES: Mapping[str, str] = {
    "ssl_certfile": "tls_cert",
    "ssl_keyfile": "tls_key",
    "ssl_ca_certs": "tls_client_ca",
    "allowed_origins": "http_allowed_origins",
    "otlp_traces_endpoint": "otlp_endpoint",
    "enable_log_requests": "log_requests",
    "uvicorn_log_level": "log_level",
}
"""Options of a server, by vLLM's names."""

_BY_TENSORS = "A model is divided by tensors alone: use tensor_parallel_size"
_REVISION = "Download the revision, and pass its folder as model"
_CALLS = "Calls are read as the chat template writes them, or as tool_format says"

ENGINE_FOREIGN: Mapping[str, str] = {
    "pipeline_parallel_size": _BY_TENSORS,
    "data_parallel_size": "It is an option of draftline serve",
    "enable_expert_parallel": _BY_TENSORS,
    "distributed_executor_backend": _BY_TENSORS,
    "disable_custom_all_reduce": _BY_TENSORS,
    "speculative_config": "Use drafter, draft_model and draft_tokens",
    "swap_space": "Preempted requests are computed again; nothing is swapped",
    "cpu_offload_gb": "Weights stay on the device",
    "kv_cache_memory_bytes": "Use kv_cache_memory_gib",
    "num_gpu_blocks_override": "Use kv_cache_memory_gib",
    "trust_remote_code": "Draftline runs no code from a checkpoint",
    "tokenizer_mode": "There is one tokenizer for each model, the fast one",
    "skip_tokenizer_init": "The tokenizer is always loaded; prompts may be token ids",
    "revision": _REVISION,
    "tokenizer_revision": _REVISION,
    "code_revision": _REVISION,
    "download_dir": "Set HF_HOME in the environment",
    "hf_overrides": "Edit config.json in the model's folder",
    "hf_token": "Set HF_TOKEN in the environment",
    "generation_config": "The engine reads only its end-of-sequence ids; set sampling in each request",
    "override_generation_config": "Set sampling in each request",
    "enable_chunked_prefill": "Prompts are always computed in chunks; see inter_token_target",
    "max_num_partial_prefills": "See inter_token_target",
    "async_scheduling": "Steps always overlap with the host's work",
    "max_logprobs": "At most 20 tokens are listed for a position",
    "max_seq_len_to_capture": "Graphs are captured for numbers of tokens, whatever their sequences' length",
    "cuda_graph_sizes": "The sizes are chosen from max_num_seqs",
    "compilation_config": "Kernels are compiled ahead of time; enforce_eager turns graphs off",
    "attention_backend": "There is one attention backend for each device",
    "guided_decoding_backend": "There is one backend for each kind of constraint",
    "structured_outputs_config": "There is one backend for each kind of constraint",
    "calculate_kv_scales": "kv_cache_dtype='int8' has scales of its own; 'fp8' has none",
    "enable_lora": "Merge the adapter into the checkpoint",
    "limit_mm_per_prompt": "Draftline serves text alone",
    "mm_processor_kwargs": "Draftline serves text alone",
    "task": "Draftline generates text alone",
    "runner": "Draftline generates text alone",
    "convert": "Draftline generates text alone",
    "kv_transfer_config": "Caches are not transferred between servers",
    "enable_sleep_mode": "Close the engine to free its memory",
    "disable_log_stats": "Statistics cost nothing and are always kept; see stats()",
    "reasoning_parser": "Reasoning is read between the marks that the chat template shows",
    "logits_processors": "Use logit_bias or a constraint",
}
"""vLLM's options of an engine that Draftline does not have, each with what to do instead."""

SERVER_FOREIGN: Mapping[str, str] = {
    "api_key": "Use tokens",
    "api_server_count": "One process serves all clients; the engine has its own on a GPU",
    "root_path": "Let the proxy strip its prefix",
    "middleware": "Draftline runs no code from a configuration",
    "allowed_methods": "Use http_allowed_origins",
    "allowed_headers": "Use http_allowed_origins",
    "allow_credentials": "Use http_allowed_origins",
    "disable_log_requests": "Use log_requests: false",
    "disable_uvicorn_access_log": "Use log_requests: false",
    "disable_fastapi_docs": "There is only /openapi.json",
    "enable_auto_tool_choice": _CALLS,
    "tool_call_parser": _CALLS,
    "tool_parser_plugin": _CALLS,
    "chat_template_content_format": "Parts of a message are joined by line breaks",
    "response_role": "Answers have the role assistant",
    "lora_modules": "Merge the adapter into the checkpoint",
    "enable_request_id_headers": "A request's header x-request-id always comes back",
    "return_tokens_as_token_ids": "Tokens are listed as text",
    "max_log_len": "Logs have no text",
}
"""The same of a server."""

SAMPLING_FOREIGN: Mapping[str, str] = {
    "best_of": "Set n, and choose among the outputs",
    "guided_decoding": "Pass constraint=Constraint(...) to generate or chat",
    "structured_outputs": "Pass constraint=Constraint(...) to generate or chat",
    "logits_processors": "Use logit_bias or a constraint",
    "detokenize": "Outputs always have their text",
    "skip_special_tokens": "Special tokens have no text",
    "spaces_between_special_tokens": "Special tokens have no text",
    "include_stop_str_in_output": "A stop string is never part of the output; stop_reason says which it was",
    "output_kind": "LLM returns whole outputs, AsyncEngine what there is so far",
    "use_beam_search": "There is no beam search",
    "length_penalty": "There is no beam search",
    "extra_args": "There are no extensions",
}
"""vLLM's sampling parameters that Draftline does not have, each with what to do instead."""

_RENDERING = "Pass Chat(messages, Rendering(...))"

CALL_FOREIGN: Mapping[str, str] = {
    "prompt_token_ids": "Pass lists of token ids as prompts",
    "lora_request": "Merge the adapter into the checkpoint",
    "tokenization_kwargs": "Set truncate_prompt_tokens in SamplingParams",
    "guided_options_request": "Pass constraint=Constraint(...)",
    "chat_template": "It is an option of the engine",
    "chat_template_content_format": "Parts of a message are joined by line breaks",
    "chat_template_kwargs": _RENDERING,
    "add_generation_prompt": _RENDERING,
    "continue_final_message": _RENDERING,
    "mm_processor_kwargs": "Draftline serves text alone",
}
"""vLLM's keywords of ``generate`` and ``chat`` that Draftline does not have, each with what to do instead."""
