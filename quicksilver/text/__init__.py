"""Characters <-> token ids: tokenizer, chat templates, detokenizer, channels, edit prompts. No torch, no HTTP."""
