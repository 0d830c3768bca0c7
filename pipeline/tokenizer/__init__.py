"""Text to token ids: the GPT-2 encoder and its vocabulary."""
