"""Reading and writing weight files: safetensors and GGUF. Headers are checked before data is mapped."""
