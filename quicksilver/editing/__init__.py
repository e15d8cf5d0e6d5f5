"""Code editing: prompts for FIM and next edit, parsing of editor requests, and merging of apply-edit snippets."""
