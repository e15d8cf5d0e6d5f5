"""`/v1/fine_tuning/jobs`: fine-tuning in OpenAI's form."""
