"""Weight files: headers are checked before data is mapped; safetensors and GGUF only."""
