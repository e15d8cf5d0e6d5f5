"""Characters <-> token ids: tokenizer, chat templates, detokenizer, channels, tool calls. No torch, no HTTP."""
