"""Fine-tuning jobs and tuned models as stored objects. The server and the trainer share them; nothing here trains."""
