"""Text to tokens and back, chat templates, prompts, sampling parameters."""
